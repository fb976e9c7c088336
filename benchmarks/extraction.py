"""Extraction: how much of real articles is found, how much else, and pages/s of CPU time on one core.

Word-level F1 (bags of words, in lower case) against the gold text of each page; for pages with gold
snippets, the share of those found that should be, and of those absent that should not. Writes
``results/extraction.json`` and ``results/extraction.md``.

    python benchmarks/extraction.py --pages FOLDER_OF_WEB_HTML
"""

import argparse
import collections
import datetime
import gzip
import json
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trafilatura
from processes import describe_machine
from resiliparse.extract.html2text import extract_plain_text

from groundup.corpus.extraction.charset import decode_page
from groundup.corpus.extraction.main_text import WebPage, extract_document

RESULTS_DIR = Path(__file__).parent / "results"
CONTENDERS: dict[str, Callable[[bytes], str]] = {
    "groundup, trafilatura": lambda body: extract_document(WebPage("", "", body), "trafilatura").text,
    "trafilatura alone, fast": lambda body: (
        trafilatura.extract(body, fast=True, include_comments=False) or ""
    ),
    "trafilatura alone, not fast": lambda body: trafilatura.extract(body, include_comments=False) or "",
    "groundup, resiliparse": lambda body: extract_document(WebPage("", "", body), "resiliparse").text,
    "resiliparse, all text": lambda body: extract_plain_text(decode_page(body)[0]),
}


def words(text: str) -> collections.Counter[str]:
    """The bag of words of a text."""
    return collections.Counter(re.findall(r"\w+", text.lower()))


def f1(found: str, gold: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words found."""
    ours, theirs = words(found), words(gold)
    shared = (ours & theirs).total()
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / ours.total(), shared / theirs.total()
    return precision, recall, 2 * precision * recall / (precision + recall)


def contains(text: str, snippets: list[str]) -> list[bool]:
    """Which snippets are in a text, whatever the white space."""
    joined = " ".join(text.split())
    return [" ".join(snippet.split()) in joined for snippet in snippets]


def measure(
    rows: list[dict[str, Any]], bodies: list[bytes], extract: Callable[[bytes], str]
) -> dict[str, Any]:
    """Quality and speed of one contender."""
    scores: dict[str, list[tuple[float, float, float]]] = {"text": [], "html": []}
    with_snippets: list[bool] = []
    without_snippets: list[bool] = []
    for body in bodies[:10]:
        extract(body)
    began = time.process_time()
    texts = [extract(body) for body in bodies]
    seconds = time.process_time() - began
    for row, text in zip(rows, texts, strict=True):
        gold = row["gold"]
        if gold["type"] == "snippets":
            with_snippets += contains(text, gold["with"])
            without_snippets += contains(text, gold["without"])
        else:
            expected = gold["text"] if gold["type"] == "text" else extract_plain_text(gold["html"])
            scores[gold["type"]].append(f1(text, expected))
    return {
        "pages_per_second": len(bodies) / seconds,
        **{
            f"{kind}_{name}": statistics.mean(score[place] for score in found)
            for kind, found in scores.items()
            for place, name in enumerate(("precision", "recall", "f1"))
        },
        "snippets_found": statistics.mean(with_snippets),
        "snippets_avoided": 1 - statistics.mean(without_snippets),
        "empty": sum(not text for text in texts),
    }


def render(result: dict[str, Any]) -> str:
    """The Markdown report."""
    counts = result["pages"]
    lines = [
        "# Extraction of main text",
        "",
        f"Measured on {result['date']}, load average {result['load']:.1f}.",
    ]
    lines += ["", *(f"- {name}: {value}" for name, value in result["machine"].items()), ""]
    lines += [
        f"Real pages as served: {counts['text']} with the text of the article (precision, recall and F1 of"
        f" words, means over pages), {counts['html']} with the article as HTML (F1),"
        f" {counts['snippets']} with snippets that should be found or avoided. Pages/s of CPU time, one core,"
        " decoding included.",
        "",
        "| | precision | recall | F1, text | F1, HTML | snippets found | avoided | empty | pages/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {row['text_precision']:.3f} | {row['text_recall']:.3f} | {row['text_f1']:.3f} |"
        f" {row['html_f1']:.3f} | {row['snippets_found']:.1%} | {row['snippets_avoided']:.1%} |"
        f" {row['empty']} | {row['pages_per_second']:.0f} |"
        for name, row in result["contenders"].items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=Path, required=True, help="folder with manifest.jsonl.gz and pages/")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    manifest = gzip.decompress((arguments.pages / "manifest.jsonl.gz").read_bytes())
    rows = [json.loads(line) for line in manifest.splitlines()]
    bodies = [gzip.decompress((arguments.pages / row["file"]).read_bytes()) for row in rows]
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": os.getloadavg()[0],
        "machine": describe_machine("trafilatura", "resiliparse", "lxml"),
        "pages": collections.Counter(row["gold"]["type"] for row in rows),
        "bytes": sum(map(len, bodies)),
        "contenders": {name: measure(rows, bodies, extract) for name, extract in CONTENDERS.items()},
    }
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "extraction.json").write_text(json.dumps(result, indent=2) + "\n")
    report = render(result)
    (arguments.results_dir / "extraction.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
