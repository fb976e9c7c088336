"""``groundup corpus import|extract``: from files and pages on disk to documents."""

from pathlib import Path
from typing import Literal

from groundup.cli.corpus_steps import StepOptions


def import_(
    *sources: Path,
    step: StepOptions,
    engine: Literal["trafilatura", "resiliparse", "none"] = "trafilatura",
    min_characters: int = 200,
) -> None:
    """Read files of any kind into shards of documents, one a line, with id, URL, source and metadata.

    Text files are one document each; a line of JSONL and a row of Parquet are one; so is a page, an HTML file
    or a record of a WARC file, of which the main text is taken (pip install 'groundup[crawl]'). A folder that
    `save_to_disk` of Hugging Face's datasets has written means its rows; one of `groundup corpus`, its
    documents. Nothing else is edited.

    For example:

        groundup corpus import notes/ books/*.txt posts.jsonl.zst -o documents
        groundup corpus import 'wudao/*.json' --key content -o documents
        groundup corpus import saved-dataset/ CC-MAIN-*.warc.gz pages/ -o documents --format parquet

    Args:
        sources: Files, folders (searched to any depth) and quoted globs.
        engine: What finds the main text of pages: trafilatura, or resiliparse, 8 times as fast and less
            exact; none reads HTML files as the text that they are.
        min_characters: Pages with less main text are dropped.
    """
    step.run("import", sources, None, {}, {"engine": engine, "min_characters": min_characters})


def extract(
    *sources: Path,
    step: StepOptions,
    engine: Literal["trafilatura", "resiliparse"] = "trafilatura",
    min_characters: int = 200,
) -> None:
    """Extract the main text of pages on disk: WARC files (also WET) and folders of HTML files.

    Each page is taken apart in a worker process with limits of time and memory: one that hangs or crashes its
    worker costs that page alone, and is counted. The output depends on the input alone, not on the number of
    workers; killed at any instant, the same command does only what is missing. Writes a corpus, as `groundup
    corpus import` does with everything that it can read.

    For example:

        groundup corpus extract pages/warc/ --out texts
        groundup corpus extract CC-MAIN-*.warc.gz saved-pages/ -o texts --engine resiliparse

    Args:
        sources: Files, folders and quoted globs; .warc, .wet, .html, .htm, .xhtml, also with .gz or .zst.
        engine: What finds the main text: trafilatura, or resiliparse, 8 times as fast and less exact.
        min_characters: Shorter texts are no document.
    """
    step.run("extract", sources, None, {}, {"engine": engine, "min_characters": min_characters, "only": True})
