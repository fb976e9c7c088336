"""Which items of an evaluation a model was trained on, and its scores without them.

The chain is a checkpoint, its data sets, and what their corpora say in ``overlaps``; scores are told as in
Brown et al. 2020 (arXiv:2005.14165), appendix C: of all items, of clean ones, and of those that overlap.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundup.checkpoint.native.contents import CheckpointAbout, read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, is_checkpoint, list_checkpoints
from groundup.core.config import from_dict
from groundup.core.errors import DataError, GroundupError
from groundup.corpus.corpus_manifest import find_corpus_manifest
from groundup.corpus.evaluation_sets import EVALUATION_SETS, content_checksum
from groundup.corpus.overlap_report import EvaluationOverlap, Overlaps, joint_overlaps
from groundup.eval.tasks.evaluation_task import EvaluationTask, Item, Results, summarise
from groundup.tokens.dataset.dataset_manifest import find_manifest
from groundup.tokens.dataset.open import token_files
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.splits import open_splits

_PLACE = re.compile(r"(?P<path>.*?)(?P<place>:\d+| \(item [\d,]+\))?", re.DOTALL)


class UnknownOverlap(Exception):  # not an error of the run
    """What a model was trained on is not known, or was not compared with the items; says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOverlap:
    """How many items of a task overlap what a model was trained on.

    Attributes:
        items: Items that were measured; of a text without items, its lines.
        places: Of those that overlap.
        cut: Items that overlapped the corpus, but no longer what was trained on.
        max_ngram: Words that an item and a document share at least.
        clean: Figures of the items that do not overlap; empty where all or none do.
        overlapping: Figures of those that do.
    """

    items: int
    places: tuple[str, ...]
    cut: int
    max_ngram: int
    clean: Mapping[str, float | int]
    overlapping: Mapping[str, float | int]


def find_overlap(
    task: EvaluationTask, results: Results, data: Sequence[Path], model: Path, trained_on: Sequence[Path]
) -> TaskOverlap | str:
    """Finds what a model was trained on of a task, or why that is not known; "" where nobody would know.

    Args:
        task: What was measured.
        results: What was found.
        data: Files, and folders with them.
        model: Its folder.
        trained_on: As of ``overlaps_of_model``.
    """
    if task.kind not in EVALUATION_SETS or not (trained_on or is_checkpoint(model)):
        return ""
    try:
        known = overlaps_of_model(model, trained_on)
        return overlap_of_task(task, results, task.find_files(data), known)
    except UnknownOverlap as reason:
        return str(reason)


def overlap_tree(overlap: TaskOverlap | str) -> dict[str, Any]:
    """Returns it under ``overlap`` as plain values; nothing where nobody would know."""
    if overlap == "":
        return {}
    tree = {"unknown": overlap} if isinstance(overlap, str) else dataclasses.asdict(overlap)
    return {"overlap": tree}


def require_training_data(paths: Sequence[Path]) -> None:
    """Refuses what no model can have been trained on.

    Raises:
        DataError: A path is no corpus and no data set.
    """
    for path in paths:
        if not path.is_dir() or find_corpus_manifest(path) is None:
            token_files(path)


def overlaps_of_model(source: Path, trained_on: Sequence[Path] = ()) -> Overlaps:
    """Finds what the training data of a model holds of evaluation items.

    Args:
        source: The model's folder.
        trained_on: The corpora and data sets that it was trained on, in place of those that it names.

    Raises:
        UnknownOverlap: It is not known.
    """
    overlaps = joint_overlaps([_overlaps_of_data(path) for path in trained_on or _data_of(source)])
    assert overlaps is not None, "each is known"
    return overlaps


def overlap_of_task(
    task: EvaluationTask, results: Results, files: Sequence[Path], known: Overlaps
) -> TaskOverlap:
    """Finds the items of a task that overlap, and the scores without them.

    Args:
        task: What was measured.
        results: What was found.
        files: Of the task.
        known: What the training data holds of evaluation items.

    Raises:
        UnknownOverlap: The training data was not compared with these files.
    """
    parted = [(item, _path_and_place(item.where)) for item in results.items]
    paths = list(dict.fromkeys(path for _, (path, _) in parted)) or list(files)
    entries = {path: _entry_of(path, task.kind, known) for path in paths}
    left = {path: set(entry.left) for path, entry in entries.items()}
    found = {path: set(entry.found) for path, entry in entries.items()}
    if not results.items:
        (entry,) = entries.values()
        return TaskOverlap(
            items=entry.items,
            places=entry.left,
            cut=len(entry.found) - len(entry.left),
            max_ngram=entry.max_ngram,
            clean={},
            overlapping={},
        )
    dirty = [item for item, (path, place) in parted if place in left[path]]
    clean = [item for item, (path, place) in parted if place not in left[path]]
    return TaskOverlap(
        items=len(parted),
        places=tuple(item.where for item in dirty),
        cut=sum(place in found[path] and place not in left[path] for _, (path, place) in parted),
        max_ngram=next(iter(entries.values())).max_ngram,
        clean=_figures(task, clean) if dirty and clean else {},
        overlapping=_figures(task, dirty) if dirty and clean else {},
    )


def _figures(task: EvaluationTask, items: Sequence[Item]) -> Mapping[str, float | int]:
    shown = {name: figure for name, figure in task.figures.items() if name in items[0].values}
    return summarise(items, shown, {}).figures


def _path_and_place(where: str) -> tuple[Path, str]:
    parted = _PLACE.fullmatch(where)
    assert parted, "matches everything"
    return Path(parted["path"]), parted["place"] or ""


def _entry_of(path: Path, task: str, known: Overlaps) -> EvaluationOverlap:
    checksum = content_checksum(path)
    same = [entry for entry in known if entry.checksum == checksum]
    if same:
        return min(same, key=lambda entry: entry.max_ngram)
    if others := [entry for entry in known if entry.task == task or Path(entry.file).name == path.name]:
        raise UnknownOverlap(f"{path} is not the file that it was compared with ({others[0].file})")
    raise UnknownOverlap(f"it was not compared with {path}")


def _data_of(source: Path) -> list[Path]:
    """The paths of the data that a model was trained on, and of those that it began from."""
    folders = [source] if is_checkpoint(source) else list_checkpoints(source / CHECKPOINTS)[-1:]
    if not folders:
        raise UnknownOverlap(f"{source} does not say what it was trained on")
    about = read_checkpoint_manifest(folders[0]).about
    if about.converted_from is not None or not about.data:
        raise UnknownOverlap(f"{source} was converted, and does not say what it was trained on")
    began = about.config.get("start", {}).get("path")
    return [*_data_of_run(about, source), *(_data_of(Path(began)) if began else ())]


def _data_of_run(about: CheckpointAbout, source: Path) -> list[Path]:
    try:
        config = from_dict(DataConfig, about.config["data"], where=source)
        found = open_splits(config, seed=0).fingerprint
    except GroundupError as error:
        raise UnknownOverlap(f"its data cannot be opened: {error}") from None
    paths = [given.path for given in config.training.values() if given.weight != 0]
    if found != about.data:
        raise UnknownOverlap(f"{', '.join(map(str, paths))} has changed since the training")
    return paths


def _overlaps_of_data(path: Path) -> Overlaps:
    """What a corpus, or the token files of a path, hold of evaluation items."""
    corpus = find_corpus_manifest(path) if path.is_dir() else None
    if corpus:
        overlaps = corpus.overlaps
    else:
        try:
            manifests = [find_manifest(file) for file in token_files(path)]
        except DataError as error:
            raise UnknownOverlap(f"its data cannot be opened: {error}") from None
        overlaps = joint_overlaps([manifest.about.overlaps if manifest else None for manifest in manifests])
    if overlaps is None:
        raise UnknownOverlap(f"{path} was not compared with evaluation items (groundup corpus decontaminate)")
    return overlaps
