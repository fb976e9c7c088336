"""Running a recipe: stages of tasks over shards, each of which is done once; the last stage is the corpus."""

import contextlib
import dataclasses
from pathlib import Path

from groundup.core.config import to_dict
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.executor.run import run_tasks
from groundup.core.executor.tasks import AnyRunner, Markers, pending, share_of_rank
from groundup.core.files import require_free_space
from groundup.core.lock import locked
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.corpus.bad_records import RECIPE_COMMAND, BadRecords, summary_of
from groundup.corpus.corpus_manifest import find_corpus_manifest
from groundup.corpus.phase_progress import PhaseProgress
from groundup.corpus.publish import QUARANTINE, judge_bad_records, publish, remove_stages, results_of, tidy
from groundup.corpus.recipe import Recipe
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.report import CorpusReport
from groundup.corpus.source_ranges import cut_into_shards
from groundup.corpus.sources import SourceFile
from groundup.corpus.stage import Phase, Stage, StageRun
from groundup.corpus.stage_runs import plan_runs

STAGES = ".stages"
"""The folder of a corpus in which its stages work."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one job of an array did.

    Attributes:
        stage: The stage that it came to.
        done: Tasks done by this run.
        left: Tasks of that stage's phase that are left to other ranks.
        is_last_phase: Whether that phase writes the stage's shards.
    """

    stage: str
    done: int = 0
    left: int = 0
    is_last_phase: bool = True


def run_recipe(
    recipe: Recipe, output_dir: Path, runner: AnyRunner, *, command: str = RECIPE_COMMAND
) -> CorpusReport:
    """Makes a corpus, or returns at once when the folder holds the same one already.

    Writes to ``output_dir``: ``documents-00000-of-00064.jsonl.zst`` and so on (``document.to_json_line``),
    ``excluded.jsonl.zst`` (id, url, rule, reason and text of what was dropped), ``manifest.json``, and
    ``quarantine.jsonl`` when the policy asks for it and there are bad records. What the stages write
    meanwhile lies in ``.stages``: a run that was killed, or whose recipe was changed, does only what is
    missing or stale.

    The same recipe and files (by path, size and time of change) give the same bytes, whoever does the tasks.
    A run that fails leaves an earlier corpus as it was. One run at a time works in a folder.

    Args:
        recipe: What to do.
        output_dir: The folder to write.
        runner: Who does the tasks.
        command: What messages name.

    Raises:
        DataError: A source is missing, unreadable or holds too many bad records; or nothing was left.
        ConfigError: ``output_dir`` is a file.
        MachineError: The folder cannot be written, the disk is full, a worker was killed, another run is
            under way.
    """
    pipeline = Pipeline(recipe, output_dir, command)
    if report := pipeline.finished():
        logger.info("%s holds this corpus already: nothing to do", output_dir)
        if not recipe.keep_stages:  # it was killed before it could remove them
            remove_stages(output_dir / STAGES, ())
        return report
    try:
        with pipeline.locked(shared=False):
            pipeline.prepare()
            pipeline.run_stage(0, runner)
            (output_dir / QUARANTINE).unlink(missing_ok=True)
            bad = pipeline.new_bad_records()
            judge_bad_records(pipeline.runs[0], bad)
            for number in pipeline.numbers[1:]:
                pipeline.run_stage(number, runner)
            manifest = publish(
                recipe,
                pipeline.runs,
                pipeline.files,
                output_dir,
                fingerprint=pipeline.fingerprint,
                bad=bad,
            )
        remove_stages(output_dir / STAGES, pipeline.runs if recipe.keep_stages else ())
        return CorpusReport.of(output_dir, manifest, reused=False)
    except OSError as error:
        raise _not_writable(error, output_dir) from error


def run_rank(
    recipe: Recipe, output_dir: Path, runner: AnyRunner, *, rank: int, world_size: int
) -> RankReport:
    """Does the tasks that fall to one job of an array, and publishes nothing.

    Task k of a phase falls to rank k modulo ``world_size``. Ranks never wait for each other: where a phase
    needs what other ranks have not finished, this one ends. When all have ended, run it again, or
    ``run_recipe``, which does what is missing and publishes the corpus.

    Args:
        recipe: The same for all ranks.
        output_dir: On a file system that all ranks see.
        runner: Who does the tasks of this rank.
        rank: Of this job, from 0.
        world_size: Number of jobs.

    Raises:
        ConfigError: ``rank`` is not below ``world_size``; else as ``run_recipe``.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank {rank} of {world_size}",
            where="--rank",
            fix="Ranks are numbered from 0 to one below --world-size.",
        )
    pipeline = Pipeline(recipe, output_dir)
    done = 0
    try:
        with pipeline.locked(shared=True):
            for number in pipeline.numbers:
                report = pipeline.run_stage(number, runner, (rank, world_size))
                done += report.done
                if report.left and pipeline.waits_after(number, report):
                    break
            return dataclasses.replace(report, done=done)
    except OSError as error:
        raise _not_writable(error, output_dir) from error


class Pipeline:
    """A recipe in a folder: which shards each stage leaves, and what is done of it."""

    def __init__(self, recipe: Recipe, output_dir: Path, command: str = RECIPE_COMMAND) -> None:
        if output_dir.exists() and not output_dir.is_dir():
            raise ConfigError("the output folder is a file", where=output_dir, fix="Name another folder.")
        self.recipe = recipe
        self.stages: tuple[Stage, ...] = (*recipe.stages, recipe.finish)
        self.output_dir = output_dir
        self.command = command
        library, files = recipe.first.find_files(leave_out=output_dir)
        self.files: list[SourceFile] = [*library, *files]
        num_shards = recipe.number_of_shards(sum(file.size_bytes for file in self.files))
        self.sources = tuple(cut_into_shards(library, files, num_shards))
        self.runs, marks = plan_runs(self.stages, recipe, output_dir / STAGES, self.sources)
        self.fingerprint = fingerprint([marks, to_dict(recipe.bad_records)])

    def locked(self, *, shared: bool) -> contextlib.AbstractContextManager[None]:
        """Ranks put up with each other, a run of everything with nobody."""
        path = self.output_dir / STAGES / "lock"
        return locked(path, what=f"the corpus {self.output_dir}", shared=shared)

    def finished(self) -> CorpusReport | None:
        """The report of the corpus in the folder, if it is whole and of this fingerprint."""
        try:
            manifest = find_corpus_manifest(self.output_dir)
        except DataError as error:
            logger.warning("building anew: %s", error)
            return None
        if manifest is None:
            return None
        whole = all(
            (self.output_dir / name).is_file() and (self.output_dir / name).stat().st_size == entry.bytes
            for name, entry in manifest.files.items()
        )
        if manifest.fingerprint != self.fingerprint or not whole:
            why = "its files are not those recorded" if not whole else "other settings or other input files"
            logger.info("%s holds another corpus (%s): building anew", self.output_dir, why)
            return None
        if manifest.counts.bad_records.bad:
            quarantine = self.output_dir / QUARANTINE
            kept = quarantine if quarantine.is_file() else None
            logger.warning("%s", summary_of(manifest.counts.bad_records, kept))
        return CorpusReport.of(self.output_dir, manifest, reused=True)

    def prepare(self) -> None:
        """Removes what killed runs have left unfinished, asks for space, and holds sources to manifests.

        Raises:
            DataError: A source is not as large as the manifest beside it records.
        """
        for pattern in (".documents-*.tmp", ".*.jsonl*.tmp", ".manifest.json.*.tmp", f"{STAGES}/*/.*.tmp"):
            for left in self.output_dir.glob(pattern):
                left.unlink()
        size = sum(file.size_bytes for file in self.files)
        require_free_space(self.output_dir, size, "the corpus")
        manifests, bad_records = CorpusManifests(), self.new_bad_records()
        for file in self.files:
            manifests.hold(file, bad_records)

    def waits_after(self, number: int, report: RankReport) -> bool:
        """Whether a rank can do nothing more: the next stage needs all shards, or its own are not there."""
        then = number + 1 + len(self._behind(number))
        return not report.is_last_phase or then == len(self.runs) or self.stages[then].is_barrier

    @property
    def numbers(self) -> list[int]:
        """The stages that have tasks of their own."""
        return [number for number, run in enumerate(self.runs) if not run.behind]

    def _behind(self, number: int) -> list[StageRun]:
        """The runs of the stages whose work the tasks of a stage do."""
        return [run for run in self.runs[number + 1 :] if run.behind and run.behind[0] is self.runs[number]]

    def run_stage(self, number: int, runner: AnyRunner, rank: tuple[int, int] | None = None) -> RankReport:
        """Does what is missing of a stage, or of a rank's share of it."""
        stage, run = self.stages[number], self.runs[number]
        together = [run, *self._behind(number)]
        for each in together:
            each.folder.mkdir(parents=True, exist_ok=True)
        markers = Markers(run.folder)
        if not pending(run.last_tasks(run.outputs), markers):
            logger.info("%s: done already", run.folder.name)
            return RankReport(stage=run.folder.name)
        if number and stage.is_barrier:
            run = dataclasses.replace(run, input_results=results_of(self.runs[number - 1]))
        phases = stage.phases(run)
        phase = next(phases)
        done = 0
        while True:
            if phase.tasks[-1].name == run.outputs[-1].name:
                kinds = [each.folder.name.partition("-")[2] for each in together[1:]]
                phase = dataclasses.replace(phase, name=", ".join([phase.name, *kinds]))
            done += self._run_phase(phase, markers, runner, rank)
            results = [markers.result(task) for task in phase.tasks]
            complete = [result for result in results if result is not None]
            if left := len(results) - len(complete):
                assert rank, "a run without ranks does them all"
                is_last = phase.tasks[-1].name == run.outputs[-1].name
                return RankReport(stage=run.folder.name, done=done, left=left, is_last_phase=is_last)
            try:
                phase = phases.send(complete)
            except StopIteration:
                break
        for each in together if not rank else ():
            tidy(each)
        return RankReport(stage=run.folder.name, done=done)

    def _run_phase(
        self, phase: Phase, markers: Markers, runner: AnyRunner, rank: tuple[int, int] | None
    ) -> int:
        mine = phase.tasks
        if rank and not phase.for_every_rank:
            mine = share_of_rank(phase.tasks, *rank)
        missing = pending(mine, markers)
        if len(missing) < len(mine):
            done = len(mine) - len(missing)
            logger.info("%s: %d of %d tasks are done already", phase.name, done, len(mine))
        if not missing:
            return 0
        for task in missing:
            markers.clear(task)
        total = phase.total_bytes * len(missing) // len(phase.tasks)
        with PhaseProgress(phase.name, total, self.new_bad_records()) as progress:
            run_tasks(missing, phase.work, markers, runner, on_report=progress.add)
        return len(missing)

    def new_bad_records(self) -> BadRecords:
        """A count of the bad records of the sources, with the recipe's policy."""
        path = self.output_dir / QUARANTINE
        return BadRecords(self.recipe.bad_records, quarantine_path=path, command=self.command)


def _not_writable(error: OSError, output_dir: Path) -> MachineError:
    return MachineError(
        f"cannot write the corpus ({error.strerror or error})",
        where=error.filename or output_dir,
        fix="Free some space or choose another folder; what is finished is kept, run the same again.",
    )
