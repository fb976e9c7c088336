"""``find_duplicates.py``, ``group_duplicate_url.py`` and ``remove_group_duplicates.py``."""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import atomic_write
from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.dedup.minhash import MinHash
from groundup.megatron.json_rows import Line, json_row, read_again, read_rows_of
from groundup.megatron.script_arguments import ScriptParser, bad_records_of

_SHINGLE = 5  # characters
_LEAST_SIMILARITY = 0.5  # that is written
_BATCH = 512
_PICKLES = "it is a pickle there, which can run anything that is in it; here all --inputs are named at once"

_STRICT = BadRecordPolicy(action="fail")

_Bands = npt.NDArray[np.uint64]


def find_duplicates(arguments: Sequence[str]) -> None:
    """Writes pairs of documents that are much the same."""
    parser = ScriptParser(
        "find_duplicates",
        "Find documents that share much of their wording: those that share a band of their MinHash"
        " signatures are compared by their runs of 5 characters; pairs above 0.5 are written as"
        " {ID: [{OTHER ID: similarity}]}. `groundup corpus dedup` finds and removes them in one command.",
        example="--inputs cleaned.json url --output duplicates.json",
    )
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar=("FILE", "KEY"),
        help="JSON lines, and the field of their ids",
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON lines to write")
    parser.add_argument(
        "--jaccard", choices=("union", "min", "max"), default="union", help="what shared runs are divided by"
    )
    parser.add_argument(
        "--heuristic-iter",
        type=int,
        default=1,
        help="documents of a bucket to compare with the rest; -1: all",
    )
    parser.add_argument("--num-bands", type=int, default=10, help="bands of a signature (10)")
    parser.add_argument(
        "--num-seeds", type=int, default=100, help="length of a signature, a multiple of that (100)"
    )
    parser.add_argument("--seed", type=int, default=1234, help="of the hash functions (1234)")
    parser.add_harmless("--jaccard-parallel", nargs=0)
    for flag in ("--load-fingerprints", "--save-fingerprints"):
        parser.add_refused(flag, _PICKLES)
    parser.add_bad_records()
    given = parser.read(arguments)
    if len(given.inputs) % 2:
        parser.error(f"--inputs {' '.join(given.inputs)}: files and fields go in pairs")
    if given.num_bands < 1 or given.num_seeds < given.num_bands or given.num_seeds % given.num_bands:
        parser.error(f"--num-seeds {given.num_seeds} is no multiple of --num-bands {given.num_bands}")
    with bad_records_of(given, parser) as bad_records:
        bands = _band_hashes(given, bad_records)
    if not len(bands):
        raise DataError("there is no document", where=" ".join(given.inputs[::2]), fix="Name other files.")
    buckets = _buckets(bands)
    texts = _texts_of(given, {number for bucket in buckets for number in bucket})
    with atomic_write(given.output) as out:
        lines = 0
        for bucket in buckets:
            for main, others in _alike(bucket, texts, given):
                out.write(json_row({main: others}))
                lines += 1
    sys.stdout.write(f"{given.output}: {lines:,} documents with near-duplicates, of {len(bands):,}\n")


def group_duplicate_url(arguments: Sequence[str]) -> None:
    """Unites pairs of documents to groups."""
    parser = ScriptParser(
        "group_duplicate_url",
        "Unite the documents of pairs that are at least so similar to groups: {NUMBER: [URL, ...]}. The first"
        " of a group is the one that remove_group_duplicates leaves.",
        example="duplicates.json groups.json 0.7",
    )
    parser.add_argument("input", type=Path, help="what find_duplicates has written")
    parser.add_argument("output", type=Path, help="JSON lines to write")
    parser.add_argument("threshold", type=float, nargs="?", default=0.7, help="the least similarity (0.7)")
    parser.add_bad_records()
    given = parser.read(arguments)
    group_of: dict[str, int] = {}
    groups: list[dict[str, None]] = []  # sets that keep their order
    with bad_records_of(given, parser) as bad_records:
        for line in read_rows_of(given.input, bad_records):
            similar = _urls_above(line.row, given.threshold, line.where)
            known = list(dict.fromkeys(group_of[url] for url in similar if url in group_of))
            group, *others = known or [len(groups)]
            if not known:
                groups.append({})
            for url in [*similar, *(url for other in others for url in groups[other])]:
                groups[group][url] = None
                group_of[url] = group
            for other in others:
                groups[other] = {}
    rows = {str(number): list(urls) for number, urls in enumerate(groups) if len(urls) > 1}
    with atomic_write(given.output) as out:
        for number, urls in rows.items():
            out.write(json_row({number: urls}))
    total = sum(map(len, rows.values()))
    sys.stdout.write(
        f"out of {total} urls, only {len(rows)} are unique and {total - len(rows)} should be removed\n"
    )


def remove_group_duplicates(arguments: Sequence[str]) -> None:
    """Leaves out all documents of each group but the first."""
    parser = ScriptParser(
        "remove_group_duplicates",
        "Leave out the documents whose field url is in a group, but for the first of each.",
        example="groups.json cleaned.json unique.json",
    )
    parser.add_argument("groups", type=Path, help="what group_duplicate_url has written")
    parser.add_argument("input", type=Path, help="JSON lines with the field url")
    parser.add_argument("output", type=Path, help="JSON lines to write")
    parser.add_bad_records()
    given = parser.read(arguments)
    removed = {url for line in read_rows_of(given.groups, BadRecords(_STRICT)) for url in _behind_first(line)}
    written = dropped = characters = 0
    size = given.input.stat().st_size if given.input.is_file() else 0
    with (
        bad_records_of(given, parser) as bad_records,
        atomic_write(given.output) as out,
        Progress(parser.script, size, "B") as progress,
    ):
        for line in read_rows_of(given.input, bad_records, texts=("url", "text"), on_read=progress.add):
            if line.row["url"] in removed:
                dropped += 1
                characters += len(line.row["text"])
            else:
                out.write(json_row(line.row))
                written += 1
    if removed and not dropped:
        raise DataError(
            f"none of its documents is among the {len(removed):,} URLs to remove", where=given.input
        )
    sys.stdout.write(f" [PROCESSED] written: {written} | removed: {dropped} (char: {characters})\n")


def _behind_first(line: Line) -> list[str]:
    """The URLs of the groups of a line but for the first of each."""
    groups = list(line.row.values())
    if not all(isinstance(group, list) for group in groups):
        raise DataError(
            "is no line of group_duplicate_url",
            where=line.where,
            fix="One has the form {NUMBER: [URL, ...]}.",
        )
    return [url for group in groups for url in group[1:]]


def _documents(given: argparse.Namespace, bad_records: BadRecords) -> Iterator[tuple[str, str]]:
    """Yields id and text of all documents of the inputs."""
    for path, key in zip(given.inputs[::2], given.inputs[1::2], strict=True):
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        with Progress(f"find_duplicates {path}", size, "B") as progress:
            for line in read_rows_of(Path(path), bad_records, texts=("text", key), on_read=progress.add):
                yield line.row[key], line.row["text"]


def _band_hashes(given: argparse.Namespace, bad_records: BadRecords) -> _Bands:
    """Returns the hashes of the bands of all documents, ``[documents, bands]``."""
    minhash = MinHash(
        shingle="characters",
        shingle_size=_SHINGLE,
        bands=given.num_bands,
        rows=given.num_seeds // given.num_bands,
        seed=given.seed,
    )
    texts = (text for _, text in _documents(given, bad_records))
    batches = iter(lambda: list(itertools.islice(texts, _BATCH)), [])
    return np.concatenate([np.zeros((0, given.num_bands), np.uint64), *map(minhash.bands_of, batches)])


def _buckets(bands: _Bands) -> list[tuple[int, ...]]:
    """Returns the documents that share a band, in their order; each set of them once."""
    found: dict[tuple[int, ...], None] = {}
    for hashes in bands.T:
        order = np.argsort(hashes, kind="stable")
        order = order[hashes[order] != 0]
        ends = np.flatnonzero(np.diff(hashes[order])) + 1
        found |= {tuple(bucket.tolist()): None for bucket in np.split(order, ends) if len(bucket) > 1}
    return sorted(found)


def _texts_of(given: argparse.Namespace, wanted: set[int]) -> dict[int, tuple[str, str]]:
    """Returns id and text of some documents, by their number: the inputs are read again."""
    if not wanted:
        return {}
    documents = enumerate(_documents(given, read_again()))
    return {number: document for number, document in documents if number in wanted}


def _alike(
    bucket: Sequence[int], texts: Mapping[int, tuple[str, str]], given: argparse.Namespace
) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Yields a document and those of its bucket that are like it; these are not looked at again."""
    left = [texts[number] for number in bucket]
    rounds = len(left) if given.heuristic_iter < 0 else given.heuristic_iter
    for _ in range(rounds):
        if len(left) < 2:
            return
        (main, text), *rest = left
        runs, left, others = _runs(text), [], []
        for name, other in rest:
            similarity = _similarity(runs, _runs(other), given.jaccard)
            if similarity > _LEAST_SIMILARITY and name != main:
                others.append({name: similarity})
            else:
                left.append((name, other))
        if others:
            yield main, others


def _runs(text: str) -> set[str]:
    """The runs of characters by which the original compares texts: the last one is none of them."""
    return {text[begin : begin + _SHINGLE] for begin in range(len(text) - _SHINGLE)}


def _similarity(one: set[str], other: set[str], by: str) -> float:
    sizes = {"union": len(one | other), "min": min(len(one), len(other)), "max": max(len(one), len(other))}
    return len(one & other) / sizes[by] if one and other else 0.0


def _urls_above(pairs: Mapping[str, Any], threshold: float, where: str) -> list[str]:
    """The URLs of a line of find_duplicates: a document, and those that are so similar to it."""
    try:
        return [
            *itertools.chain.from_iterable(
                [
                    main,
                    *(
                        name
                        for other in others
                        for name, similarity in other.items()
                        if similarity >= threshold
                    ),
                ]
                for main, others in pairs.items()
            )
        ]
    except (AttributeError, TypeError):
        raise DataError(
            "is no line of find_duplicates", where=where, fix="One has the form {URL: [{OTHER URL: 0.9}]}."
        ) from None
