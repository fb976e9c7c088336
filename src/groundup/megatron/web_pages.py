"""``download.py`` and ``merge_data.py``: URLs -> files of texts and metadata -> one JSON line a page."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from groundup.core.config import from_dict
from groundup.core.errors import DataError
from groundup.core.files import atomic_write, read_json
from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.crawl.crawl_config import USER_AGENT, CrawlConfig
from groundup.corpus.document import Document
from groundup.corpus.read_documents import read_documents
from groundup.megatron.json_rows import json_row
from groundup.megatron.script_arguments import ScriptParser, bad_records_of

_FLAGS = {"limits.seconds": "--timeout", "workers": "--n_procs", "host_delay_s": "--host-delay"}


def download(arguments: Sequence[str]) -> None:
    """Fetches a list of URLs; each page's text and metadata go into files of their own."""
    parser = ScriptParser(
        "download",
        "Fetch the URLs of a list, politely: `groundup corpus crawl` with its defaults. Killed at any"
        " instant, the same command goes on. Writes DIR/data/0000300-SHA256.txt and"
        " DIR/meta/0000300-SHA256.json, by the place in the list and the URL, and all documents with their"
        " metadata as DIR/documents-00000.jsonl.zst and so on, which `groundup corpus` reads.",
        example="clean_urls.txt --output_dir scraped",
    )
    parser.add_argument("url_file", type=Path, help="one URL a line")
    parser.add_argument("--output_dir", type=Path, default=Path("scraped"), help="to write (scraped)")
    parser.add_argument("--n_procs", type=int, help="processes that extract texts (one for each core)")
    parser.add_argument("--timeout", type=float, default=-1, help="seconds for one URL (30; -1 too)")
    parser.add_argument("--user-agent", default=USER_AGENT, help="names you to servers")
    parser.add_argument(
        "--host-delay", type=float, default=1.0, help="seconds between requests to a host (1)"
    )
    parser.add_argument("--mirror", default="", help="host:port that is asked for all of them")
    parser.add_argument(
        "--scraper", choices=("newspaper", "bs4"), default="newspaper", help="both are trafilatura here"
    )
    parser.add_harmless("--save_uncompressed", "--compress", "--scraper_memoize", "--show_warnings", nargs=0)
    parser.add_harmless("--chunk_size", "--compress_fmt")
    parser.add_refused("--max_urls", "take the first lines of the list with `head -n 100`")
    given = parser.read(arguments)
    from groundup.corpus.crawl.crawl_loop import urls_of
    from groundup.corpus.crawl.crawler import crawl

    tree = {
        "urls": given.url_file,
        "output_dir": given.output_dir,
        "user_agent": given.user_agent,
        "host_delay_s": given.host_delay,
        "mirror": given.mirror,
        "workers": given.n_procs,
        "limits": {} if given.timeout == -1 else {"seconds": given.timeout},
    }
    counts = crawl(from_dict(CrawlConfig, tree, where=parser.prog, names=_FLAGS))
    numbers: dict[str, int] = {}
    for number, url in enumerate(urls_of(given.url_file)):
        numbers.setdefault(url, number)
    pages = 0
    own = BadRecords(BadRecordPolicy(action="fail"))
    with Progress("pages", counts.total, "URLs") as progress:
        for document in read_documents([given.output_dir], bad_records=own):
            _write_page(given.output_dir, document, numbers[document.id])
            progress.add(1)
            pages += 1
    sys.stdout.write(f"{counts.table()}\n\n{pages:,} pages in {given.output_dir / 'data'}\n")


def _write_page(folder: Path, document: Document, number: int) -> None:
    """Writes text and metadata, where they are not there already."""
    digest = hashlib.sha256(document.id.encode()).hexdigest()
    meta = {
        "url": document.id,
        "word_count": len(document.text.split()),
        "elapsed": document.meta.get("seconds"),
        "scraper": "trafilatura",
        "domain": urlsplit(document.id).hostname,
        **{name: value for name, value in document.meta.items() if name not in ("origin", "seconds")},
    }
    for kind, ending, content in (("data", "txt", document.text), ("meta", "json", json.dumps(meta))):
        path, written = folder / kind / f"{number:07d}-{digest}.{ending}", content.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.stat().st_size != len(written):
            path.write_bytes(written)


def merge_data(arguments: Sequence[str]) -> None:
    """Writes a folder of texts as JSON lines, one for each page."""
    parser = ScriptParser(
        "merge_data",
        "Write a folder of text files as JSON lines: one document for each file (not for each of its lines),"
        " with what the file of the same name in the folder meta beside it says: its URL and the rest.",
        example="--data_path scraped/data --output_file merged.json",
    )
    parser.add_argument(
        "--data_path", type=Path, default=Path("scraped/data"), help="folder of .txt (scraped/data)"
    )
    parser.add_argument(
        "--output_file", type=Path, default=Path("merged.json"), help="to write (merged.json)"
    )
    parser.add_bad_records()
    given = parser.read(arguments)
    if not given.data_path.is_dir():
        raise DataError(
            "no such folder", where=given.data_path, fix="Name the folder of texts with --data_path."
        )
    total = sum(1 for _ in given.data_path.rglob("*.txt"))
    rows = without_url = 0
    with (
        bad_records_of(given, parser) as bad_records,
        Progress("merge_data", total, "pages") as progress,
        atomic_write(given.output_file) as out,
    ):
        for document in read_documents([given.data_path], bad_records=bad_records):
            meta_path = (given.data_path.parent / "meta" / document.id).with_suffix(".json")
            meta = read_json(meta_path) if meta_path.is_file() else {}
            if not isinstance(meta, dict):
                raise DataError("is not a JSON object", where=meta_path, fix="Mend it, or remove it.")
            without_url += "url" not in meta
            out.write(json_row({"text": document.text, "url": document.id, **meta}))
            rows += 1
            progress.add(1)
    named = (
        f"; {without_url:,} without a URL in {given.data_path.parent / 'meta'} have the name of their file"
    )
    sys.stdout.write(f"{given.output_file}: {rows:,} documents{named if without_url else ''}\n")
