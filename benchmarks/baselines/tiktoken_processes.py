"""Bare tiktoken in a pool of processes: reads JSONL, encodes, counts the tokens, writes nothing.

python tiktoken_processes.py VOCAB MERGES PROCESSES FILE...
"""

import io
import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import tiktoken
import zstandard
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
BATCH_CHARACTERS = 1 << 19
encoding: tiktoken.Encoding


def load(vocab: str, merges: str) -> None:
    """GPT-2's encoding from its two files, once a process."""
    global encoding
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=merges, encoder_json_file=vocab)
    specials = {"<|endoftext|>": 50256}
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)


def count(texts: list[str]) -> int:
    """Tokens of some texts."""
    return sum(len(encoding.encode_ordinary(text)) for text in texts)


def batches(files: list[str]) -> Iterator[list[str]]:
    """The texts of all files, about half a megabyte at a time."""
    batch, size = [], 0
    for file in files:
        with Path(file).open("rb") as raw:
            for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw)):
                batch.append(orjson.loads(line)["text"])
                size += len(batch[-1])
                if size >= BATCH_CHARACTERS:
                    yield batch
                    batch, size = [], 0
    yield batch


if __name__ == "__main__":
    vocab, merges, processes, *files = sys.argv[1:]
    with multiprocessing.Pool(int(processes), load, (vocab, merges)) as pool:
        print(json.dumps({"tokens": sum(pool.imap(count, batches(files)))}))
