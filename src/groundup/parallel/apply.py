"""The techniques of a layout, in the one order in which they go together."""

from groundup.models import Model
from groundup.parallel.compiling import compile_layers
from groundup.parallel.sharding import shard_over_data
from groundup.parallel.team import Team
from groundup.parallel.tensor import parallelize_tensors


def parallelize(model: Model, team: Team, *, compile: bool) -> None:  # noqa: A002  # the setting's name
    """Spreads a model over the ranks of a run, in place.

    Args:
        model: With its weights, the same on all ranks.
        team: This rank among the others.
        compile: Compile each layer.
    """
    mesh, layout = team.mesh, team.layout
    if mesh is not None and layout.tp > 1:
        parallelize_tensors(model, model.config, mesh["tp"])  # each layer over its tensor-parallel ranks
    if compile:
        compile_layers(model)
    if mesh is not None and layout.dp > 1:
        shard_over_data(model, layout, mesh)  # last: it gathers what compiled layers compute with
