"""``filter_ngrams.py``: JSON lines -> the same without what they share with items of evaluation tasks."""

import argparse
import collections
import sys
from collections.abc import Sequence
from pathlib import Path

from groundup.core.config import from_dict
from groundup.core.errors import ConfigError, DataError
from groundup.core.files import atomic_write
from groundup.core.progress import Progress
from groundup.corpus.evaluation_sets import EvaluationFile
from groundup.corpus.ngram_overlap import NgramIndex, Overlap
from groundup.megatron.json_rows import json_row, read_again, read_rows_of
from groundup.megatron.script_arguments import ScriptParser, bad_records_of

_TASKS = ("lambada", "squad", "natural_questions", "triviaqa", "webqa", "race", "drop", "coqa", "piqa")
_RULES = (
    ("max_ngram", "--max-ngram-size", 13, "words of an n-gram"),
    ("min_ngram", "--min-ngram-size", 8, "items of fewer words are not looked for"),
    ("common_count", "--key-threshold", 10, "n-grams in so many documents are common language, and stay"),
    ("min_characters", "--filter-text-char-len", 200, "pieces up to this length are dropped"),
    ("max_pieces", "--splits-count", 10, "documents that fall into more pieces are dropped"),
    (
        "cut_characters",
        "--remove-char-each-side",
        200,
        "characters to cut on each side, up to a sentence's end",
    ),
)
"""Setting, its flag, default and meaning."""


def filter_ngrams(arguments: Sequence[str]) -> None:
    """Cuts items of evaluation tasks out of documents."""
    parser = ScriptParser(
        "filter_ngrams",
        "Cut out of documents what they share with items of evaluation tasks, by n-grams of words. Each piece"
        " that is left is a line, with its place in split_id. `groundup corpus decontaminate` does this in"
        " many processes, reports which items were found, and knows more tasks.",
        example="--tasks lambada --lambada-path lambada.jsonl --dedup-dataset in.json text --output out.json",
    )
    parser.add_argument(
        "--tasks", nargs="+", required=True, choices=_TASKS, metavar="TASK", help=", ".join(_TASKS)
    )
    parser.add_argument("--lambada-path", type=Path, help="LAMBADA's test file")
    parser.add_argument(
        "--task-path", nargs=2, action="append", default=[], metavar=("TASK", "FILE"),
        help="file of another task's items (.jsonl, .json, .csv, .tsv), with the field question or goal",
    )  # fmt: skip
    parser.add_argument(
        "--dedup-dataset", nargs=2, required=True, metavar=("FILE", "KEY"), help="JSON lines, field"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON lines to write")
    for setting, flag, default, about in _RULES:
        parser.add_argument(flag, type=int, default=default, dest=setting, help=f"{about} ({default})")
    parser.add_harmless("--num-threads")
    why = "the n-grams are counted anew in each run; `groundup corpus decontaminate` takes all files at once"
    parser.add_refused("--save-dictionary", why)
    parser.add_refused("--load-dictionary", why)
    parser.add_bad_records()
    given = parser.read(arguments)
    settings = {setting: getattr(given, setting) for setting, *_ in _RULES}
    names = {setting: flag for setting, flag, *_ in _RULES}
    rules = from_dict(Overlap, settings, where=parser.prog, names=names)
    index = NgramIndex((texts for file in _task_files(given) for _, texts in file.items()), rules)
    if not len(index):
        raise DataError(
            f"no item has {rules.min_ngram} words", where=" ".join(given.tasks), fix="Name its file."
        )
    common = _common(index, given, parser)
    sys.stdout.write(
        f"{len(index) - len(common):,} n-grams are cut out, {len(common):,} are common language\n"
    )
    _cut(index, common, given)


def _task_files(given: argparse.Namespace) -> list[EvaluationFile]:
    paths = {"lambada": given.lambada_path, **{task: Path(path) for task, path in given.task_path}}
    for task in given.tasks:
        if paths.get(task) is None:
            flag = "--lambada-path FILE" if task == "lambada" else f"--task-path {task} FILE"
            raise ConfigError(
                f"where the items of {task} lie is not said", where="--tasks", fix=f"Add {flag}."
            )
    return [EvaluationFile(paths[task], "lambada" if task == "lambada" else "") for task in given.tasks]


def _common(index: NgramIndex, given: argparse.Namespace, parser: ScriptParser) -> frozenset[int]:
    """The n-grams that stand in many documents, which are counted once each."""
    path, key = Path(given.dedup_dataset[0]), given.dedup_dataset[1]
    counts: collections.Counter[int] = collections.Counter()
    size = path.stat().st_size if path.is_file() else 0
    with bad_records_of(given, parser) as bad_records, Progress("count", size, "B") as progress:
        for line in read_rows_of(path, bad_records, texts=(key,), on_read=progress.add):
            counts.update(index.scan(line.row[key]).count().keys())
    return frozenset(ngram for ngram, count in counts.items() if count >= index.settings.common_count)


def _cut(index: NgramIndex, common: frozenset[int], given: argparse.Namespace) -> None:
    path, key = Path(given.dedup_dataset[0]), given.dedup_dataset[1]
    prefix = "-".join(given.tasks)
    tally: collections.Counter[str] = collections.Counter()
    with Progress("cut", path.stat().st_size, "B") as progress, atomic_write(given.output) as out:
        for line in read_rows_of(path, read_again(), texts=(key,), on_read=progress.add):
            pieces = index.scan(line.row[key]).clean(common)
            number = int(line.where.rpartition(":")[2])
            tally["documents"] += 1
            tally["splitted"] += len(pieces) > 1
            tally["ignored"] += not pieces
            tally["trimmed"] += len(pieces) == 1 and len(pieces[0]) < len(line.row[key])
            if len(pieces) > index.settings.max_pieces:
                tally["too many"] += 1
                continue
            split_id = f"{line.row['split_id']}-" if "split_id" in line.row else ""
            for place, piece in enumerate(pieces):
                row = {**line.row, key: piece, "split_id": f"{split_id}{prefix}-{number:010d}-{place:04d}"}
                out.write(json_row(row))
    sys.stdout.write(
        f" Total docs {tally['documents']} splitted {tally['splitted']} ignored {tally['ignored']}"
        f" splits > theshold {tally['too many']} trimmed {tally['trimmed']}\n"
    )
