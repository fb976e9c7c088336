"""``groundup tokens build``, ``merge`` and ``fetch``: files of tokens in Megatron-LM's format."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts

from groundup.cli.options import (
    NO_DATA_TOKENIZER,
    NO_TOKENIZER,
    DataTokenizerOptions,
    TokenizerOptions,
    chosen_policy,
)
from groundup.core.errors import ConfigError
from groundup.core.executor.tasks import RayRunner
from groundup.core.progress import human_count
from groundup.corpus.bad_records import Action
from groundup.tokens.dataset.fetch import fetch_tokens
from groundup.tokens.dataset.merge import merge_tokens
from groundup.tokens.tokenize import build_rank, build_tokens


def build(
    *sources: Path,
    prefix: Path,
    tokenizer: TokenizerOptions = NO_TOKENIZER,
    key: Annotated[tuple[str, ...], cyclopts.Parameter(negative="")] = ("text",),
    append_end_of_document: bool = True,
    workers: int | None = None,
    bad_records: Action = "skip-malformed",
    max_bad: float = 0.001,
    runner: Literal["processes", "ray"] = "processes",
    ray_address: str = "",
    rank: int | None = None,
    world_size: int | None = None,
) -> None:
    """Tokenize documents into Megatron-LM's .bin and .idx, in the order of the input.

    Writes PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's preprocess_data.py writes,
    PREFIX_KEY_document.sources.npz (the file, line and URL of each document), PREFIX_KEY_document.json (what
    is in them and what they were made from) and PREFIX_tokenizer/.

    The input is cut into parts of up to 64 MB, whose pieces lie in PREFIX_parts/ until they are joined. Run
    again after Ctrl-C or a kill, it does only the parts that are missing; run again when all is done, it
    finds its work done. The result is the same bytes for any number of workers, ranks and restarts.

    On many machines with a common file system: a Slurm array runs this command with --rank and --world-size
    in each job (part k falls to rank k modulo the world size; ranks never wait for each other and join
    nothing), and when all have ended, the same command without --rank joins the parts and does any that
    are missing. Or --runner ray does the parts on a Ray cluster.

    For example:

        groundup tokens build runs/corpus --prefix runs/tokens/corpus \
--tokenizer runs/tokenizer
        groundup tokens build posts.jsonl --prefix data/posts --vocab-file gpt2-vocab.json \
--merge-file gpt2-merges.txt --key title --key body --workers 8
        groundup tokens build crawl/ --prefix data/crawl --tokenizer gpt2 \
--rank $SLURM_ARRAY_TASK_ID --world-size $SLURM_ARRAY_TASK_COUNT

    Args:
        sources: JSONL and text files, plain, .gz or .zst; Parquet; folders (to any depth); quoted globs.
        prefix: Path and beginning of the names of what is written.
        key: The JSON field or Parquet column that holds the text; each of several (--key title --key body)
            goes into files of its own.
        append_end_of_document: Close each document with the end-of-document id.
        workers: Processes; one for each core when left out, 0 for none beside this one. Under Ray: parts at
            a time.
        bad_records: What to do with records that cannot be read: leave them out, but stop at a damaged
            file (skip-malformed); also keep what stands before the damage in a file (skip); do so and copy
            what is left out to PREFIX_quarantine.jsonl (quarantine); or stop at the first (fail).
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
        runner: Processes of this machine, or tasks of Ray (pip install 'groundup[ray]').
        ray_address: Of the Ray cluster; RAY_ADDRESS, or one started on this machine, when left out.
        rank: Which job of an array this is, from 0: do its parts, and say how many are left to others.
        world_size: How many jobs there are.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("--rank and --world-size go together", where="command line", fix="Give both.")
    if ray_address and runner != "ray":
        raise ConfigError("--ray-address is without effect", where="command line", fix="Add --runner ray.")
    if runner == "ray" and rank is not None:
        raise ConfigError(
            "Ray hands out the parts itself", where="command line", fix="Leave out --rank or --runner ray."
        )
    settings: dict[str, Any] = {
        "keys": key,
        "append_end_of_document": append_end_of_document,
        "workers": workers,
        "bad_records": chosen_policy(bad_records, max_bad),
    }
    loaded = tokenizer.load()
    if rank is not None and world_size is not None:
        done = build_rank(sources, prefix, loaded, rank=rank, world_size=world_size, **settings)
        sys.stdout.write(
            f"rank {rank} of {world_size}: {done.done:,} parts done, {done.left:,} of {done.total:,} left"
            + (" to other ranks\n" if done.left else "; now join them: the same command without --rank\n")
        )
        return
    ray = RayRunner(address=ray_address, workers=workers or 0) if runner == "ray" else None
    report = build_tokens(sources, prefix, loaded, ray=ray, **settings)
    for name, written in report.prefixes.items():
        counts = report.counts[name]
        text_bytes = counts.text_bytes or 0
        per_token = text_bytes / max(1, counts.tokens)
        state = " (was there already)" if report.reused else ""
        sys.stdout.write(
            f"{written}{state}\n  {counts.documents:,} documents, {counts.tokens:,} tokens,"
            f" {text_bytes / 1e6:.1f} MB of text ({per_token:.2f} bytes per token)\n"
        )
        if counts.empty_documents:
            sys.stdout.write(f"  {counts.empty_documents:,} empty documents left out\n")


def merge(
    *sources: Path,
    prefix: Path,
    tokenizer: DataTokenizerOptions = NO_DATA_TOKENIZER,
) -> None:
    """Merge token files into one PREFIX.bin and PREFIX.idx.

    Parts in Megatron-LM's format give byte for byte what its merge_datasets.py gives, in the order named; a
    folder stands for its parts in the order of their names. Shards of build-nanogpt and llm.c are converted:
    their stream of tokens stays as it is, and each document begins with the id that opens it there. Run
    again with unchanged files, it finds its work done (where the tokenizer is known).

    For example:

        groundup tokens merge parts/ --prefix data/all
        groundup tokens merge books_text_document wiki_text_document --prefix data/books_and_wiki
        groundup tokens merge 'edu_fineweb10B/*train*.npy' --prefix data/fineweb_train --tokenizer gpt2

    Args:
        sources: Prefixes, shards, folders and quoted globs, all of one kind and one tokenizer.
        prefix: Of what is written.
    """
    report = merge_tokens(
        sources,
        prefix,
        tokenizer=tokenizer.find(),
        end_of_document_id=tokenizer.end_of_document_id,
    )
    sys.stdout.write(
        f"{report.prefix}{' (was there already)' if report.reused else ''}\n"
        f"  {report.num_documents:,} documents, {report.num_tokens:,} tokens,"
        f" merged files: {report.num_shards:,}\n"
    )


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
