"""``groundup corpus``: from text sources to clean documents."""

import sys
from pathlib import Path
from typing import Any

from groundup.core.config import from_dict
from groundup.core.errors import ConfigError
from groundup.corpus.bad_records import Action
from groundup.corpus.build import CorpusConfig, build_corpus

_FLAGS = {
    "output_dir": "--out",
    "text_key": "--key",
    "cut_characters": "--cut-characters",
    "shuffle_seed": "--seed",
    "bad_records.action": "--bad-records",
    "bad_records.max_bad": "--max-bad",
}


def build(
    *sources: Path,
    out: Path,
    python_library: bool = False,
    key: str = "text",
    min_characters: int = 0,
    max_characters: int | None = None,
    cut_characters: int = 0,
    deduplicate: bool = True,
    shuffle: bool = True,
    seed: int = 0,
    bad_records: Action = "skip-malformed",
    max_bad: float = 0.001,
) -> None:
    """Collect text into a corpus: cleaned, without exact duplicates, shuffled.

    Reads text files (each one document) and JSONL (each line one document), plain, .gz or .zst; repairs
    broken Unicode and white space; keeps the first of equal texts; writes DIR/documents.jsonl.zst, what
    was dropped and why to DIR/excluded.jsonl.zst, and DIR/manifest.json. Run again with the same input
    and settings, it finds its work done.

    For example:

        groundup corpus build notes/ books/*.txt posts.jsonl.zst --out runs/corpus
        groundup corpus build --python-library --out runs/corpus
        groundup corpus build wudao.json --key content --min-characters 200 --out runs/corpus-zh

    Args:
        sources: Files, folders (searched to any depth) and quoted globs.
        out: The folder to write.
        python_library: Read the standard library of this Python too: about 600 files, 10 MB.
        key: The JSON field that holds the text.
        min_characters: Drop shorter documents.
        max_characters: Drop longer documents.
        cut_characters: Cut longer documents into parts of at most so many characters.
        deduplicate: Drop documents whose words were seen before.
        shuffle: Write the documents in random order; otherwise in the order of the sources.
        seed: Another seed is another order.
        bad_records: What to do with records that cannot be read: leave them out, but stop at a damaged
            file (skip-malformed); also keep what stands before the damage in a file (skip); do so and copy
            what is left out to DIR/quarantine.jsonl (quarantine); or stop at the first (fail).
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
    """
    if min_characters < 0 or (max_characters is not None and max_characters < max(1, min_characters)):
        raise ConfigError(
            f"no text has {min_characters} to {max_characters} characters",
            where="--min-characters, --max-characters",
            fix="Give 0 or more, and no larger least than most.",
        )
    steps: list[dict[str, Any]] = [{"kind": "fix_unicode"}, {"kind": "normalize_whitespace"}]
    if min_characters > 0 or max_characters is not None:
        steps.append({"kind": "length", "min_characters": min_characters, "max_characters": max_characters})
    tree = {
        "output_dir": out,
        "sources": sources,
        "python_library": python_library,
        "text_key": key,
        "cut_characters": cut_characters,
        "steps": steps,
        "deduplicate": deduplicate,
        "shuffle_seed": seed if shuffle else None,
        "bad_records": {"action": bad_records, "max_bad": max_bad},
    }
    report = build_corpus(from_dict(CorpusConfig, tree, where="command line", names=_FLAGS))
    state = " (was there already)" if report.reused else ""
    sys.stdout.write(f"{report.table()}\n\n{report.documents_path}{state}\n")
