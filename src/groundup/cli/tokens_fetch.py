"""``groundup tokens fetch``: token files from object storage."""

import sys
from pathlib import Path

from groundup.core.progress import human_count
from groundup.tokens.dataset.fetch import fetch_tokens


def fetch(*urls: str, prefix: Path, connections: int = 8) -> None:
    """Fetch token files from object storage or a web server, to train on them from a local disk.

    A dataset in Megatron-LM's format comes with its manifest, document sources and tokenizer, where it
    has them. Files are verified by the checksums in the manifest; without one, by the sizes that headers
    tell. Each appears when it is whole. Run again, after Ctrl-C or a kill too, it verifies the files that
    are there and fetches the others; to continue within a file, use the store's own tool and then
    `groundup tokens verify`.

    Needs pip install 'groundup[remote]', and for S3 s3fs, for Google Cloud gcsfs, for Azure adlfs.
    Credentials are the store's own matter; for public buckets of S3 set FSSPEC_S3_ANON=true.

    For example:

        groundup tokens fetch s3://bucket/data/web_text_document --prefix /nvme/web_text_document
        groundup tokens fetch gs://bucket/edu_fineweb10B --prefix /nvme/edu_fineweb10B
        groundup tokens fetch https://host/shards/fineweb_train_{000001..000010}.bin --prefix /nvme/fineweb

    Args:
        urls: Prefixes of datasets, shards, folders and quoted globs, of one store. A web server lists no
            folder as a rule: there, name each prefix or shard.
        prefix: Of the dataset here, when there is one URL and it is a dataset's prefix; else the folder to
            put everything into, under the names it has there.
        connections: Files at a time.
    """
    report = fetch_tokens(urls, prefix, connections=connections)
    for path in report.paths:
        sys.stdout.write(f"{path}\n")
    there = f", {report.num_there:,} were there already" if report.num_there else ""
    right = "checksums are right" if report.with_checksums else "sizes are right (not all have a manifest)"
    sys.stdout.write(
        f"  {human_count(report.fetched_bytes)}B fetched ({report.num_fetched:,} files{there}); {right}\n"
    )
