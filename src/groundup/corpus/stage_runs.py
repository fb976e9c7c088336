"""Where each stage of a recipe reads and writes, and which do their work in the tasks of the one before."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from groundup.core.manifest import fingerprint
from groundup.corpus.recipe import Recipe
from groundup.corpus.shard import Passage, Shard
from groundup.corpus.source_ranges import ShardSources
from groundup.corpus.stage import MapStage, Stage, StageRun


def plan_runs(
    stages: Sequence[Stage], recipe: Recipe, folder: Path, sources: tuple[ShardSources, ...]
) -> tuple[list[StageRun], list[str]]:
    """Plans a run of each stage of a recipe.

    Args:
        stages: Those of the recipe, and ``Finish``.
        recipe: Whose run it is.
        folder: In which each has a folder of its own.
        sources: What each shard of the first stage is read from.

    Returns:
        The runs, and the fingerprints of the last shards, which are those of the corpus.
    """
    quarantine = recipe.bad_records.action == "quarantine"
    marks = [shard.fingerprint() for shard in sources]
    shards: list[list[Shard]] = []
    for number, stage in enumerate(stages):
        marks = stage.fingerprints(marks, (recipe.keep_dropped, quarantine))
        own = folder / f"{number:02d}-{stage.kind}"
        shards.append([Shard(own, shard, len(marks), mark) for shard, mark in enumerate(marks)])
    if not recipe.keep_stages:
        _pass_on(recipe.stages, shards, recipe.keep_dropped)
    runs: list[StageRun] = []
    leader, place = None, 0
    for number, outputs in enumerate(shards):
        inputs = tuple(shards[number - 1]) if number else ()
        if inputs and inputs[0].passed_to:
            leader, place = leader or runs[-1], place + 1 if leader else 0
        else:
            leader = None
        runs.append(
            StageRun(
                folder=outputs[0].folder,
                inputs=inputs,
                outputs=tuple(outputs),
                keep_dropped=recipe.keep_dropped,
                sources=sources,
                quarantine=quarantine,
                behind=(leader, place) if leader else None,
            )
        )
    return runs, marks


def _pass_on(stages: Sequence[Stage], shards: list[list[Shard]], keep_dropped: bool) -> None:
    """Has stages that map take documents from the stage before them without a file between the two.

    The shards of the stage before then have the fingerprint of what its tasks do in the end. What is still
    written between stages is compressed quickly, and has a fingerprint of its own.

    Args:
        stages: Of a recipe.
        shards: Of each stage; changed in place.
        keep_dropped: Of the recipe.
    """
    for number in range(len(stages) - 1, 0, -1):
        stage, before = stages[number], shards[number - 1]
        if isinstance(stage, MapStage):
            shards[number - 1] = [
                dataclasses.replace(
                    one, fingerprint=then.fingerprint, passed_to=Passage(stage, then, keep_dropped)
                )
                for one, then in zip(before, shards[number], strict=True)
            ]
        else:
            shards[number - 1] = [
                dataclasses.replace(one, fingerprint=fingerprint([one.fingerprint, "passing"]), is_kept=False)
                for one in before
            ]
