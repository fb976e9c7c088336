"""``groundup corpus``: from text sources to clean documents."""

import itertools
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts

from groundup.core.config import from_dict, resolve
from groundup.core.errors import ConfigError, DataError
from groundup.core.executor.local import runner_of
from groundup.core.executor.tasks import RayRunner
from groundup.core.log import logger
from groundup.corpus import look_up
from groundup.corpus.bad_records import Action
from groundup.corpus.finish import ShardFormat
from groundup.corpus.look_up import corpus_manifest, dropped_for
from groundup.corpus.pipeline import run_rank, run_recipe
from groundup.corpus.recipe import Recipe
from groundup.corpus.report import CorpusReport
from groundup.report.corpus_page import write_corpus_page

_FLAGS = {
    "stages.0.text_key": "--key",
    "stages.0.cut_characters": "--cut-characters",
    "stages.2.seed": "--seed",
    "stages.3.seed": "--seed",
    "num_shards": "--num-shards",
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
    num_shards: int | None = None,
    format: ShardFormat = "jsonl",  # noqa: A002  # the flag
    workers: int | None = None,
) -> None:
    """Collect text into a corpus: cleaned, without exact duplicates, shuffled.

    Reads text files (each one document), JSONL, Parquet and Arrow (each line or row one document), and the
    main text of HTML and WARC files (each page one document); repairs broken Unicode and white space; keeps
    the first of equal texts; writes DIR/documents-00000-of-00004.jsonl.zst and so on, what was dropped and
    why to DIR/excluded.jsonl.zst, and DIR/manifest.json. Run again with the same input and settings, it finds
    its work done; after Ctrl-C or a kill, it does only what is missing. `groundup corpus run` does the same
    by a recipe of your own.

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
        num_shards: Files of documents to write; by size when left out.
        format: Of these files: jsonl (JSON lines, compressed with Zstandard) or parquet.
        workers: Processes; one for each core when left out, 0 for none beside this one.
    """
    if min_characters < 0 or (max_characters is not None and max_characters < max(1, min_characters)):
        raise ConfigError(
            f"no text has {min_characters} to {max_characters} characters",
            where="--min-characters, --max-characters",
            fix="Give 0 or more, and no larger least than most.",
        )
    filters: list[dict[str, Any]] = [{"kind": "fix_unicode"}, {"kind": "normalize_whitespace"}]
    if min_characters > 0 or max_characters is not None:
        filters.append({"kind": "length", "min_characters": min_characters, "max_characters": max_characters})
    read = {"sources": sources, "python_library": python_library, "text_key": key}
    stages: list[dict[str, Any]] = [{"kind": "import", "cut_characters": cut_characters, **read}]
    stages += [{"kind": "clean", "filters": filters}]
    stages += [{"kind": "exact_dedup"}] if deduplicate else []
    stages += [{"kind": "shuffle", "seed": seed}] if shuffle else []
    tree = {
        "stages": stages,
        "num_shards": num_shards,
        "bad_records": {"action": bad_records, "max_bad": max_bad},
        "keep_stages": False,
        "format": format,
    }
    recipe = from_dict(Recipe, tree, where="command line", names=_FLAGS)
    print_report(run_recipe(recipe, out, runner_of(workers), command="groundup corpus build"))


def run(
    recipe: Path,
    *overrides: str,
    out: Annotated[Path, cyclopts.Parameter(name=["--out", "-o"])],
    workers: int | None = None,
    executor: Literal["processes", "ray"] = "processes",
    address: str = "",
    rank: int | None = None,
    world_size: int | None = None,
    print_config: bool = False,
) -> None:
    """Make a corpus by a recipe: a list of stages, each over shards of documents.

    Writes DIR/documents-00000-of-00064.jsonl.zst and so on, what was dropped and why to
    DIR/excluded.jsonl.zst, DIR/manifest.json and DIR/report.html. A run that was killed, or whose recipe was
    changed, does only what is missing or stale; the result is the same bytes for any number of workers,
    machines and restarts.

    On many machines with a common file system: a Slurm array runs this command with --rank and --world-size
    in each job. Ranks never wait for each other: where a stage needs all shards of the one before, a rank
    ends when its own are done, and the array is submitted again; the same command without --rank does what
    is left and writes the corpus. Or --executor ray does the tasks on a Ray cluster.

    For example:

        groundup corpus run recipe.yaml -o runs/corpus
        groundup corpus run recipe.yaml stages.shuffle.seed=7 num_shards=256 -o runs/corpus --workers 8
        groundup corpus run recipe.yaml -o runs/corpus --rank $SLURM_ARRAY_TASK_ID \
--world-size $SLURM_ARRAY_TASK_COUNT

    Args:
        recipe: A YAML file: stages (import, clean with its filters, exact_dedup, shuffle), num_shards,
            bad_records, format (jsonl or parquet).
        overrides: Settings of the recipe as dotted.key=value; a stage is named by its number or its kind.
        out: The folder to write.
        workers: Processes; one for each core when left out, 0 for none beside this one. Under Ray: tasks at
            a time.
        executor: Processes of this machine, or tasks of Ray (pip install 'groundup[ray]').
        address: Of the Ray cluster; RAY_ADDRESS, or one started on this machine, when left out.
        rank: Which job of an array this is, from 0: do its tasks, and say how many are left to others.
        world_size: How many jobs there are.
        print_config: Print the recipe with all defaults and where each value came from, and do nothing.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("--rank and --world-size go together", where="command line", fix="Give both.")
    if address and executor != "ray":
        raise ConfigError("--address is without effect", where="command line", fix="Add --executor ray.")
    if executor == "ray" and rank is not None:
        raise ConfigError(
            "Ray hands out the tasks itself", where="command line", fix="Leave out --rank or --executor ray."
        )
    resolved = resolve(Recipe, file=recipe, overrides=overrides)
    if print_config:
        sys.stdout.write(f"{resolved.render()}\n")
        return
    runner = RayRunner(address=address, workers=workers or 0) if executor == "ray" else runner_of(workers)
    if rank is not None and world_size is not None:
        done = run_rank(resolved.value, out, runner, rank=rank, world_size=world_size)
        state = (
            f"{done.left:,} tasks of {done.stage} are left to other ranks; run it again when they have ended"
            if done.left
            else "all stages are done: the same command without --rank writes the corpus"
        )
        sys.stdout.write(f"rank {rank} of {world_size}: {done.done:,} tasks done; {state}\n")
        return
    print_report(run_recipe(resolved.value, out, runner))


def print_report(report: CorpusReport) -> None:
    """Prints what became of the documents, and where they are; writes the page of the corpus."""
    state = " (was there already)" if report.reused else ""
    sys.stdout.write(f"{report.table()}\n\n{report.documents_glob}{state}\n")
    logger.info("report: %s", write_corpus_page(report.output_dir))


def report(
    corpus: Path, *, out: Annotated[Path | None, cyclopts.Parameter(name=["--out", "-o"])] = None
) -> None:
    """Write one HTML page about a corpus: stages, drop reasons with examples, lengths, languages, domains.

    The page holds all that it shows and asks nobody for anything, so it can be kept, mailed or printed. Every
    command that makes a corpus writes it too.

    For example:

        groundup corpus report runs/corpus
        groundup corpus report runs/corpus -o corpus.html

    Args:
        corpus: The folder of a corpus.
        out: The file to write; CORPUS/report.html when left out.
    """
    sys.stdout.write(f"{write_corpus_page(corpus, out)}\n")


def stats(corpus: Path) -> None:
    """Show what was read, kept and dropped for a corpus, with reasons and examples.

    For example:

        groundup corpus stats runs/corpus

    Args:
        corpus: The folder of a corpus.
    """
    sys.stdout.write(f"{CorpusReport.of(corpus, corpus_manifest(corpus), reused=True).table()}\n")


def show(
    corpus: Path,
    *,
    reason: str,
    number: Annotated[int, cyclopts.Parameter(name=["--number", "-n"])] = 5,
) -> None:
    """Show documents that were dropped for a reason.

    For example:

        groundup corpus show runs/corpus --reason "length:too short" -n 3

    Args:
        corpus: The folder of a corpus.
        reason: A rule, or rule:reason, as `groundup corpus stats` lists them.
        number: How many, from the beginning.
    """
    for found in itertools.islice(dropped_for(corpus, reason), max(0, number)):
        url = f" {found.fields['url']}" if found.fields["url"] else ""
        head = f"{found.fields['id']}{url} [{found.verdict}]{found.because and f'; {found.because}'}"
        sys.stdout.write(f"{head}\n{found.fields['text'].rstrip()}\n\n")


def trace(corpus: Path, name: str) -> None:
    """Say why a document was kept or dropped, and where it is now.

    For example:

        groundup corpus trace runs/corpus https://example.org/page

    Args:
        corpus: The folder of a corpus.
        name: The document's URL, id, or origin (file:line).
    """
    found = look_up.trace(corpus, name)
    if not found:
        raise DataError(
            f"no document has the id, URL or origin {name!r}",
            where=corpus,
            fix="It was not in the sources, or was a bad record: see `groundup corpus stats`.",
        )
    for document in found:
        sys.stdout.write(f"{document.verdict}: {document.fields['id']} in {corpus / document.place}\n")
        if document.because:
            sys.stdout.write(f"  {document.because}\n")
