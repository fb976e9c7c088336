"""``groundup corpus clean|dedup|decontaminate|shuffle|audit``: stages of a recipe one at a time."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from groundup.cli.corpus import print_report
from groundup.core.config import from_dict, to_dict
from groundup.core.config_sources import read_overrides
from groundup.core.errors import ConfigError
from groundup.core.executor.local import runner_of
from groundup.corpus.bad_records import Action, BadRecordPolicy, BadRecords
from groundup.corpus.dedup.audit import audit as audit_documents
from groundup.corpus.dedup.audit import sample_documents
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.finish import ShardFormat
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.read_documents import read_documents
from groundup.corpus.recipe import Recipe

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?")
_UNITS = {"": 1e-9, "k": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_CLEANING = "fix_unicode,normalize_whitespace,remove_notices,language,gopher_repetition,gopher_quality"


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What every step has.

    Attributes:
        out: The folder to write.
        format: Of the files of documents: jsonl (JSON lines, compressed with Zstandard) or parquet.
        key: The JSON field or the column that holds the text.
        num_shards: Files of documents to write; by size when left out.
        workers: Processes; one for each core when left out, 0 for none beside this one.
        bad_records: What to do with records that cannot be read: skip-malformed, skip, quarantine or fail, as
            in `groundup corpus build --help`.
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
        keep_dropped: Keep dropped documents whole in DIR/excluded.jsonl.zst, not their beginning alone.
    """

    out: Annotated[Path, Parameter(name=["--out", "-o"])]
    format: ShardFormat = "jsonl"
    key: str = "text"
    num_shards: int | None = None
    workers: int | None = None
    bad_records: Action = "skip-malformed"
    max_bad: float = 0.001
    keep_dropped: bool = False

    def run(
        self,
        verb: str,
        sources: Sequence[Path],
        stage: dict[str, Any] | None,
        names: dict[str, str],
        pages: dict[str, Any] | None = None,
    ) -> None:
        """Runs the recipe of an import and one stage, and prints its report.

        Args:
            verb: Behind `groundup corpus`.
            sources: Files, folders and globs.
            stage: Settings of the stage; None imports alone.
            names: Setting of the stage -> the flag that sets it.
            pages: How pages become documents.
        """
        first = {"kind": "import", "sources": sources, "text_key": self.key, "pages": pages or {}}
        tree = {
            "stages": [first, *([stage] if stage else [])],
            "num_shards": self.num_shards,
            "bad_records": {"action": self.bad_records, "max_bad": self.max_bad},
            "keep_dropped": self.keep_dropped,
            "keep_stages": False,
            "format": self.format,
        }
        flags = {
            "num_shards": "--num-shards",
            "bad_records.max_bad": "--max-bad",
            "stages.0.pages.min_characters": "--min-characters",
        }
        flags |= {f"stages.1.{setting}": flag for setting, flag in names.items()}
        recipe = from_dict(Recipe, tree, where="command line", names=flags)
        command = f"groundup corpus {verb}"
        print_report(run_recipe(recipe, self.out, runner_of(self.workers), command=command))


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MinHashOptions:
    """How near-duplicates are found.

    Attributes:
        threshold: Jaccard similarity from which on two documents should count as duplicates.
        shingle: What documents are compared by: runs of words, or of characters.
        shingle_size: Words or characters of a run.
        num_hashes: Length of a signature; more follow the threshold more sharply, and take longer.
    """

    threshold: float = 0.7
    shingle: Literal["words", "characters"] = "words"
    shingle_size: int = 5
    num_hashes: int = 128

    def chosen(self) -> MinHash:
        """Returns the settings.

        Raises:
            ConfigError: Values that cannot be.
        """
        names = {field.name: f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(self)}
        return from_dict(MinHash, dataclasses.asdict(self), where="command line", names=names)


_MINHASH = MinHashOptions()


def clean(*sources: str, filters: str = _CLEANING, step: StepOptions) -> None:
    """Repair, edit and drop documents by filters, in the order named; each drop has a reason.

    The filters: fix_unicode, normalize_whitespace, remove_notices (JavaScript, cookies), language, length,
    gopher_quality, gopher_repetition, c4_quality, fineweb_quality, mask_pii, url_rules. Their options are
    words behind the sources, filter.option=value; `groundup corpus show` prints what was dropped, by reason.

    For example:

        groundup corpus clean documents/ -o clean
        groundup corpus clean documents/ 'language.keep=[en,de]' gopher_quality.min_words=30 -o clean
        groundup corpus clean pages/ --filters fix_unicode,length length.min_characters=200 -o clean

    Args:
        sources: Files, folders and quoted globs; then options as filter.option=value.
        filters: Their names, separated by commas.
    """
    paths = [Path(word) for word in sources if not _is_option(word)]
    chosen: list[dict[str, Any]] = [{"kind": name} for name in filters.split(",") if name]
    options, _ = read_overrides([word for word in sources if _is_option(word)])
    for kind, values in options.items():
        of_kind = [settings for settings in chosen if settings["kind"] == kind]
        if not of_kind:
            raise ConfigError(
                f"{kind} is not among the filters {filters}",
                where="command line",
                fix="Name it with --filters.",
            )
        for settings in of_kind:
            settings.update(values)
    step.run("clean", paths, {"kind": "clean", "filters": chosen}, {"filters": "--filters"})


def dedup(
    *sources: Path,
    exact: bool = False,
    minhash: MinHashOptions = _MINHASH,
    keep: Literal["first", "longest"] = "first",
    memory: str = "2G",
    step: StepOptions,
) -> None:
    """Keep one of each cluster of documents that are nearly the same, or of those that are the same.

    Near-duplicates are found by MinHash signatures cut into bands; how many bands and rows follow from the
    threshold and are logged. `groundup corpus audit` shows what they find and miss in your documents.

    For example:

        groundup corpus dedup clean/ -o unique
        groundup corpus dedup clean/ -o unique --threshold 0.8 --keep longest --memory 4G
        groundup corpus dedup clean/ -o unique --exact

    Args:
        sources: Files, folders and quoted globs.
        exact: Drop only documents whose words are the same.
        keep: Which document of a cluster stays: the first of the input, or the longest.
        memory: What the search for duplicates may take, however many documents there are: 500M or 4G.
    """
    flags = {"memory_gigabytes": "--memory"}
    if exact:
        step.run("dedup", sources, {"kind": "exact_dedup", "memory_gigabytes": _gigabytes(memory)}, flags)
        return
    stage = {
        "kind": "near_dedup",
        "minhash": to_dict(minhash.chosen()),
        "keep": keep,
        "memory_gigabytes": _gigabytes(memory),
    }
    step.run("dedup", sources, stage, flags)


def decontaminate(
    *sources: Path,
    against: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    ngram: int = 13,
    common_count: int = 10,
    report_only: bool = False,
    step: StepOptions,
) -> None:
    """Cut the items of evaluation tasks out of documents, by Megatron-LM's rule.

    An n-gram of words that an item and a document share is cut out with 200 characters on each side, up to
    the ends of sentences; what is left of a document stays where it is longer than 200 characters, and the
    document goes where it falls into more than ten pieces.

    For example:

        groundup corpus decontaminate unique/ --against lambada.jsonl hellaswag.jsonl -o train
        groundup corpus decontaminate unique/ --against lambada.jsonl -o report --report-only

    Args:
        sources: Files, folders and quoted globs.
        against: JSONL files of items; their text is in the field text, ctx, question, goal, prompt, sentence
            or context, with endings, choices or options.
        ngram: Words of an n-gram; items of 8 words and more are looked for.
        common_count: An n-gram that stands so often in the documents is common language, and stays.
        report_only: Count, and leave the documents as they are.
    """
    overlap = {"max_ngram": ngram, "min_ngram": min(8, ngram), "common_count": common_count}
    stage = {"kind": "decontaminate", "against": against, "overlap": overlap, "report_only": report_only}
    names = {"overlap.max_ngram": "--ngram", "overlap.common_count": "--common-count", "against": "--against"}
    step.run("decontaminate", sources, stage, names)


def shuffle(*sources: Path, seed: int = 0, step: StepOptions) -> None:
    """Put documents in a random order: larger than memory, and the same for any number of workers.

    For example:

        groundup corpus shuffle train/ --seed 1234 -o shuffled

    Args:
        sources: Files, folders and quoted globs.
        seed: Another seed is another order.
    """
    step.run("shuffle", sources, {"kind": "shuffle", "seed": seed}, {"seed": "--seed"})


def audit(
    *sources: Path,
    minhash: MinHashOptions = _MINHASH,
    sample: int = 10_000,
    key: str = "text",
) -> None:
    """Compare pairs of your documents with what `groundup corpus dedup` would find.

    Takes a sample, computes the true similarity of all pairs that are somewhat alike, and prints for each
    range of similarity how many pairs there are, how many were found, and how many theory expects.

    For example:

        groundup corpus audit clean/ --threshold 0.8

    Args:
        sources: Files, folders and quoted globs.
        sample: Documents to compare.
        key: The JSON field or the column that holds the text.
    """
    settings = minhash.chosen()
    with BadRecords(BadRecordPolicy(), command="groundup corpus audit") as bad_records:
        documents = sample_documents(read_documents(sources, text_key=key, bad_records=bad_records), sample)
    found = audit_documents(documents, settings)
    bands, rows = settings.banding
    lines = [f"{found.documents:,} documents; {bands} bands of {rows} rows", ""]
    lines.append(f"{'similarity':<14}{'pairs':>8}{'found':>8}{'expected':>10}{'chance':>9}")
    for each in found.bins:
        chance = settings.probability(each.low + 0.05)
        head = f"{each.low:.1f} to {each.low + 0.1:.1f}    {each.pairs:>8,}{each.found:>8,}"
        lines.append(f"{head}{each.expected:>10.1f}{chance:>9.1%}")
    lines += ["", "pairs nearest to the threshold:"] if found.examples else []
    for one, other, similarity, is_found in found.examples:
        lines.append(f"  {similarity:.3f} {'found' if is_found else 'missed'}  {one}  {other}")
    sys.stdout.write("\n".join(lines) + "\n")


def _is_option(word: str) -> bool:
    return re.match(r"[a-z0-9_]+\.[a-z_]+=", word) is not None


def _gigabytes(text: str) -> float:
    found = _MEMORY.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"{text!r} is no amount of memory", where="--memory", fix="Write 500M or 4G.")
    return float(found[1]) * _UNITS[found[2]]
