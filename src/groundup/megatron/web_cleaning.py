"""``cleanup_dataset.py``, ``add_id.py`` and ``merge_jsons.py``: from JSON lines to JSON lines."""

import argparse
import collections
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ftfy

from groundup.core.errors import DataError
from groundup.core.files import atomic_write
from groundup.core.progress import Progress
from groundup.corpus.document import Document, text_bytes
from groundup.corpus.filter import Drop
from groundup.corpus.filters import Language
from groundup.megatron.json_rows import Line, Row, json_row, read_rows_of
from groundup.megatron.script_arguments import ScriptParser, bad_records_of
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer

_LEAST_TOKENS = 128  # the end of the document is one of them
_CHARACTERS_PER_TOKEN = 8  # longer texts are not counted
_SHOWN = 2
_HERE = (Path("gpt2-vocab.json"), Path("gpt2-merges.txt"))  # by the names that the original's users have


def cleanup_dataset(arguments: Sequence[str]) -> None:
    """Repairs texts, and drops those that are not English or too short."""
    parser = ScriptParser(
        "cleanup_dataset",
        "Repair each text by ftfy; drop it where it is not English, or shorter than 128 tokens of GPT-2. All"
        " fields stay. `groundup corpus clean` has these rules and more, in many processes.",
        example="merged.json cleaned.json",
    )
    parser.add_argument("input", type=Path, help="JSON lines with the field text, also .gz and .zst")
    parser.add_argument("output", type=Path, help="JSON lines to write")
    parser.add_argument(
        "--vocab-file",
        type=Path,
        help="GPT-2's; if left out, gpt2-vocab.json here, or found on this machine, or downloaded",
    )
    parser.add_argument("--merge-file", type=Path, help="with --vocab-file")
    parser.add_bad_records()
    given = parser.read(arguments)
    if (given.vocab_file is None) != (given.merge_file is None):
        parser.error("--vocab-file and --merge-file go together")
    files = (given.vocab_file, given.merge_file) if given.vocab_file else _HERE
    is_named = given.vocab_file or all(path.is_file() for path in files)
    clean = _Cleaning(load_gpt2_files(*files) if is_named else load_tokenizer("gpt2"))
    began = time.monotonic()
    try:
        _map_rows(parser, given, given.input, given.output, clean, texts=("text",))
    finally:
        _report(clean, time.monotonic() - began)


def _report(clean: "_Cleaning", seconds: float) -> None:
    """Prints what was dropped, and the last line of the original."""
    count, size, examples = clean.dropped, clean.dropped_bytes, clean.examples
    for reason in sorted(count):
        sys.stdout.write(
            f"dropped, {reason}: {count[reason]:,} documents, {size[reason]:,} bytes, e.g."
            f" {', '.join(examples[reason])}\n"
        )
    characters = clean.dropped_characters
    sys.stdout.write(
        f"[FINAL] | elapsed time: {seconds:.2f} | documents: {clean.documents}"
        f" | fixed text: {clean.fixed} | non-english: {count['not English']}"
        f" | non-english chars: {characters['not English']} | small docs: {count['small']}"
        f" | small docs chars: {characters['small']}\n"
    )


class _Cleaning:
    """The rules of ``cleanup_dataset.py``, and what they did."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._language = Language(keep=("en",), min_score=0.0)
        self.documents = self.fixed = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.dropped_bytes: collections.Counter[str] = collections.Counter()
        self.dropped_characters: collections.Counter[str] = collections.Counter()
        self.examples: collections.defaultdict[str, list[str]] = collections.defaultdict(list)

    def __call__(self, line: Line) -> Row | None:
        row = line.row
        text = ftfy.fix_text(row["text"])
        self.documents += 1
        self.fixed += text != row["text"]
        reason = self._objection(text)
        if not reason:
            return {**row, "text": text}
        self.dropped[reason] += 1
        self.dropped_bytes[reason] += text_bytes(text)
        self.dropped_characters[reason] += len(text)
        if len(self.examples[reason]) < _SHOWN:
            self.examples[reason].append(str(row.get("url") or line.where))
        return None

    def _objection(self, text: str) -> str:
        if isinstance(self._language.apply(Document("", "", text)), Drop):
            return "not English"
        is_short = len(text) < _CHARACTERS_PER_TOKEN * _LEAST_TOKENS
        return "small" if is_short and len(self._tokenizer.encode(text)) + 1 < _LEAST_TOKENS else ""


def add_id(arguments: Sequence[str]) -> None:
    """Numbers documents."""
    parser = ScriptParser(
        "add_id",
        "Give each document the field adlr_id: PREFIX-0000000001 and so on.",
        example="--input-file train.json --output-file numbered.json --id-prefix web",
    )
    parser.add_argument("--input-file", type=Path, required=True, help="JSON lines")
    parser.add_argument("--output-file", type=Path, required=True, help="JSON lines to write")
    parser.add_argument("--id-prefix", required=True, help="what the ids begin with")
    parser.add_harmless("--log-interval")
    parser.add_bad_records()
    given = parser.read(arguments)
    numbers = iter(range(1, sys.maxsize))
    _map_rows(
        parser,
        given,
        given.input_file,
        given.output_file,
        lambda line: {**line.row, "adlr_id": f"{given.id_prefix}-{next(numbers):010d}"},
    )


def merge_jsons(arguments: Sequence[str]) -> None:
    """Joins files of JSON lines."""
    parser = ScriptParser(
        "merge_jsons",
        "Join the *.json of a folder, in the order of their names; each line must be an object.",
        example="--json_path cleaned --output_file merged_output.json",
    )
    parser.add_argument("--json_path", type=Path, default=Path(), help="the folder (.)")
    parser.add_argument("--output_file", type=Path, default=Path("merged_output.json"), help="to write")
    parser.add_bad_records()
    given = parser.read(arguments)
    own = given.output_file.resolve()
    paths = sorted(path for path in given.json_path.glob("*.json") if path.resolve() != own)
    if not paths:
        raise DataError("there is no *.json", where=given.json_path, fix="Name the folder with --json_path.")
    written = 0
    with bad_records_of(given, parser) as bad_records, atomic_write(given.output_file) as out:
        for path in paths:
            for line in read_rows_of(path, bad_records):
                out.write(line.raw + b"\n")
                written += 1
    sys.stdout.write(f"{given.output_file}: {written:,} documents of {len(paths):,} files\n")


def _map_rows(
    parser: ScriptParser,
    given: argparse.Namespace,
    source: Path,
    output: Path,
    change: Callable[[Line], Row | None],
    *,
    texts: tuple[str, ...] = (),
) -> None:
    """Writes what a function makes of each row; None is left out."""
    read = written = 0
    with bad_records_of(given, parser) as bad_records, atomic_write(output) as out:
        size = source.stat().st_size if source.is_file() else 0
        with Progress(parser.script, size, "B") as progress:
            for line in read_rows_of(source, bad_records, texts=texts, on_read=progress.add):
                read += 1
                if (changed := change(line)) is not None:
                    out.write(json_row(changed))
                    written += 1
        if not written:
            raise DataError(f"none of {read:,} documents is kept", where=source, fix="Name another file.")
    sys.stdout.write(f"{output}: {written:,} documents\n")
