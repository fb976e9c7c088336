"""Items a second of HellaSwag and LAMBADA, ours against lm-evaluation-harness with its Hugging Face backend.

The same weights (random ones of GPT-2's size), a batch of 8 for the harness, fp32, one thread, interleaved
rounds, seconds of processor time; scores are compared. Needs the extra [eval] and accelerate. Arguments: a
folder with GPT-2's vocab.json and merges.txt, hellaswag_val.jsonl.gz, lambada_test.jsonl.gz.
"""

import dataclasses
import gzip
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from lm_eval.models.huggingface import HFLM
from random_model import model_of_124m

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.eval.lm_eval_adapter import GroundupLM
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

ROUNDS = 3
ITEMS = {"hellaswag": 24, "lambada": 60}


def requests(task, path):
    lines = random.Random(1).sample(gzip.decompress(Path(path).read_bytes()).splitlines(), ITEMS[task])
    items = [json.loads(line) for line in lines]
    if task == "hellaswag":
        pairs = [(item["ctx"], f" {ending}") for item in items for ending in item["endings"]]
    else:
        pairs = [
            (context, f" {word}") for context, _, word in (item["text"].rpartition(" ") for item in items)
        ]
    return [SimpleNamespace(args=pair, task_name=task) for pair in pairs]


def timed(function, *arguments, **options):
    began = time.process_time()
    found = function(*arguments, **options)
    return time.process_time() - began, found


def main(vocabulary, *paths):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        loaded = dataclasses.replace(model_of_124m(), tokenizer=load_tokenizer(vocabulary))
        write_huggingface(loaded, source / "model")
        ours = GroundupLM.open(source / "model")
        theirs = HFLM(pretrained=str(source / "model"), device="cpu", batch_size=8, dtype="float32")
    for _ in range(ROUNDS):
        for task, path in zip(ITEMS, paths, strict=True):
            asked = requests(task, path)
            here, found = timed(ours.loglikelihood, asked)
            there, expected = timed(theirs.loglikelihood, asked, disable_tqdm=True)
            worst = max(abs(one[0] - other[0]) for one, other in zip(found, expected, strict=True))
            same = all(one[1] == other[1] for one, other in zip(found, expected, strict=True))
            print(
                f"{task}: ours {ITEMS[task] / here:.2f} items/s, harness {ITEMS[task] / there:.2f},"
                f" {there / here:.2f} times; log-likelihoods differ by {worst:.1e}, decisions equal: {same}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
