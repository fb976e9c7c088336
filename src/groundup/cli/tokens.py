"""``groundup tokens build``: documents to files of tokens in Megatron-LM's format."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts

from groundup.cli.options import NO_TOKENIZER, TokenizerOptions, chosen_policy
from groundup.core.errors import ConfigError
from groundup.core.executor.tasks import RayRunner
from groundup.corpus.bad_records import Action
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
