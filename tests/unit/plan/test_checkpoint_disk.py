"""The disk of a run's checkpoints, against a run."""

import pytest

from groundup.checkpoint.native.folder import list_checkpoints
from groundup.plan.checkpoint_disk import checkpoint_disk
from groundup.train.setup import checkpoints_of
from tests.runs import make_config, make_data, run


def test_a_run_leaves_what_was_planned(tmp_path):
    keep = ("checkpoint.keep_last=1", "checkpoint.keep_every=2", "ema.decay=0.9")
    wide = ("model.hidden_size=96", "model.ffn_size=384", "checkpoint.interval=1")
    config = make_config(make_data(tmp_path), tmp_path / "run", *wide, *keep)
    run(config)
    left = list_checkpoints(checkpoints_of(config))
    planned = checkpoint_disk(config)
    assert (planned.written, planned.kept) == (6, len(left))
    tensors = sum(path.stat().st_size for folder in left for path in folder.glob("*.safetensors"))
    assert tensors == pytest.approx(planned.one * len(left), rel=0.05)


@pytest.mark.parametrize(
    ("keep", "kept", "most"),
    [
        (("checkpoint.keep_last=2",), 2, 3),
        (("checkpoint.keep_last=3", "checkpoint.keep_every=300"), 3 + 2, 6),
        (("spike_guard.kind=rollback", "spike_guard.back=250"), 4, 5),
    ],
)
def test_most_at_once(tmp_path, keep, kept, most):
    steps = ("num_steps=1050", "checkpoint.interval=100")
    found = checkpoint_disk(make_config(tmp_path / "data", tmp_path / "run", *steps, *keep))
    assert found.written == 11 + ("spike_guard.kind=rollback" in keep)
    assert (found.kept, found.most) == (kept, most)
