"""The end of a run: the last shards become a corpus folder, whose manifest counts what became of the rest."""

import collections
import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundup.core.concatenate import append_range
from groundup.core.config import from_dict, to_dict
from groundup.core.errors import DataError
from groundup.core.executor.tasks import Markers
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, describe_files, write_manifest
from groundup.corpus.bad_records import BadRecords
from groundup.corpus.corpus_manifest import EXCLUDED, MANIFEST, CorpusAbout, CorpusCounts, CorpusManifest
from groundup.corpus.import_sources import quarantine_name
from groundup.corpus.profile import ProfileTally
from groundup.corpus.recipe import Recipe
from groundup.corpus.report import Tally
from groundup.corpus.sources import SourceFile, describe_sources
from groundup.corpus.stage import Results, StageRun

QUARANTINE = "quarantine.jsonl"
"""The bad records of a corpus, where they are kept."""


def results_of(run: StageRun) -> Results:
    """What the last tasks of a stage left, all being done."""
    leader, place = run.behind or (run, None)
    markers = Markers(leader.folder)
    results = [markers.result(task) for task in leader.last_tasks(leader.outputs)]
    done = [result for result in results if result is not None]
    if len(done) < len(results):
        raise DataError(
            f"{len(results) - len(done)} finished shards have gone",
            where=run.folder,
            fix="Leave the folder alone while a corpus is made; run the command again.",
        )
    return done if place is None else [result["passed"][place] for result in done]


def judge_bad_records(run: StageRun, bad: BadRecords) -> None:
    """Gathers and judges the bad records of the stage that reads; writes their file, where they are kept.

    Args:
        run: That stage, all done.
        bad: Takes them.

    Raises:
        DataError: There are too many, or one with which the policy does not put up.
    """
    pieces = [shard.folder / quarantine_name(shard) for shard in run.outputs]
    kept = [piece for piece in pieces if piece.is_file()]
    if bad.quarantine_path and kept:
        with atomic_write(bad.quarantine_path) as file:
            for piece in kept:
                append_range(file, piece)
    for result in results_of(run):
        outcome = result["bad_records"]
        bad.take(outcome["good"], outcome["by_reason"], outcome["offenders"])
        bad.require_none_fatal(outcome["offenders"])
    bad.judge()
    if bad.bad:
        logger.warning("%s", bad.summary())


def publish(
    recipe: Recipe,
    runs: Sequence[StageRun],
    files: Sequence[SourceFile],
    output_dir: Path,
    *,
    fingerprint: str,
    bad: BadRecords,
) -> CorpusManifest:
    """Puts the shards of the last stage into the folder and describes them, the manifest being the last.

    Args:
        recipe: Whose run this is.
        runs: Its stages, all done, and ``Finish``.
        files: The sources.
        output_dir: The folder.
        fingerprint: Of the recipe and the sources.
        bad: The bad records of the sources.

    Raises:
        DataError: No document is left.
    """
    *runs, finish = runs
    counts = _counts(recipe, runs, finish, bad)
    if not counts.documents:
        raise _nothing_left(recipe, counts)
    (output_dir / MANIFEST).unlink(missing_ok=True)  # from here on the old corpus is gone
    for ending in ("jsonl.zst", "parquet"):
        for path in output_dir.glob(f"documents-*.{ending}"):
            path.unlink()
    shards = recipe.finish.paths(finish)
    for shard in shards:
        _place(shard, output_dir / shard.name)
    with atomic_write(output_dir / EXCLUDED) as excluded:
        for run in runs:
            for dropped in run.outputs:
                append_range(excluded, dropped.excluded_path)
    records = [FileRecord(**result["file"]) for result in results_of(finish)]
    files_of_documents = dict(zip((shard.name for shard in shards), records, strict=True))
    manifest = CorpusManifest(
        fingerprint=fingerprint,
        inputs=describe_sources(files),
        counts=counts,
        files=files_of_documents | describe_files(output_dir, [EXCLUDED]),
        about=CorpusAbout(recipe=to_dict(recipe)),
    )
    write_manifest(output_dir / MANIFEST, manifest)
    return manifest


def tidy(run: StageRun) -> None:
    """Removes what the earlier phases of a finished stage, and runs of other settings, have left."""
    own = {"lock"}
    for shard in run.outputs:
        own |= {
            shard.path.name,
            f"{shard.name}.parquet",
            shard.excluded_path.name,
            quarantine_name(shard),
            f"{shard.name}.done.json",
        }
    for path in run.folder.iterdir():
        if path.name not in own:
            shutil.rmtree(path) if path.is_dir() else path.unlink()  # a folder: the scratch of a killed task


def remove_stages(stages_dir: Path, keep: Sequence[StageRun]) -> None:
    """Removes the folders of stages that the recipe has not, or that are not to be kept."""
    kept = {run.folder for run in keep}
    if not stages_dir.is_dir():
        return
    for folder in stages_dir.iterdir():
        if folder.is_dir() and folder not in kept:
            shutil.rmtree(folder)
    if not kept:
        shutil.rmtree(stages_dir)


def _counts(recipe: Recipe, runs: Sequence[StageRun], finish: StageRun, bad: BadRecords) -> CorpusCounts:
    edited: collections.Counter[str] = collections.Counter()
    dropped: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    for number, (stage, run) in enumerate(zip(recipe.stages, runs, strict=True)):
        tally = Tally()
        for result in results_of(run):
            tally.add(result)
        counts = tally.counts()
        dropped += [{"stage": number, **entry} for entry in counts.pop("dropped")]
        edited.update(counts["edited"])
        stages.append({"kind": stage.kind, **counts})
    first = results_of(runs[0])
    read = {name: sum(result[name] for result in first) for name in ("documents_read", "bytes_read")}
    tree = {
        **read,
        "documents": stages[-1]["documents"],
        "bytes": stages[-1]["bytes"],
        "edited": dict(sorted(edited.items())),
        "dropped": dropped,
        "bad_records": to_dict(bad.counts()),
        "stages": stages,
        "read_profile": _profile(first),
        "profile": _profile(results_of(finish)),
    }
    return from_dict(CorpusCounts, tree, where=runs[0].folder)


def _profile(results: Results) -> dict[str, Any]:
    tally = ProfileTally()
    for result in results:
        tally.add(result["profile"])
    return tally.counts()


def _place(shard: Path, path: Path) -> None:
    """Gives a shard a second name, or copies it where the file system has no such thing."""
    with contextlib.suppress(OSError):
        path.hardlink_to(shard)
        return
    with atomic_write(path) as file:
        append_range(file, shard)


def _nothing_left(recipe: Recipe, counts: CorpusCounts) -> DataError:
    bad = counts.bad_records
    parts = [f"{entry.rule}: {entry.reason} {entry.documents:,}" for entry in counts.dropped]
    parts += [f"bad record: {reason} {count:,}" for reason, count in bad.by_reason.items()]
    because = f" ({'; '.join(parts)})" if parts else ": the files are empty"
    sources = ", ".join(str(source) for source in recipe.first.sources) or "the Python library"
    return DataError(
        f"no document is left of {counts.documents_read + bad.bad:,}{because}",
        where=sources,
        fix="Check the sources, the text key and the filters.",
    )
