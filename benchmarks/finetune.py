"""Supervised fine-tuning: tokens a second of groundup and of TRL's SFTTrainer.

The same random Llama, tokenizer, template and conversations (posts of the shared data, their first paragraph
asked and the rest answered), the same AdamW, in bf16 where the machine has it. groundup packs; TRL is
measured packed and padded. The contenders take turns, each a process that trains some steps; the first step
of each does not count. Tokens are those of conversations, without padding. Writes ``results/finetune.json``
and ``results/finetune.md``.

    python benchmarks/finetune.py --trl-python /tmp/trl/bin/python --data SHARED_DATA --rounds 3

Nothing else may run meanwhile; ``--busy`` measures all the same, and says so.
"""

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from processes import describe_machine, run_process, wait_for_idle_cpu

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy, load
from groundup.core.compressed import open_decompressed
from groundup.finetune.templates import with_template
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files

BASELINES_DIR = Path(__file__).parent / "baselines"
RESULTS_DIR = Path(__file__).parent / "results"
LENGTH, BATCH, MICRO = 512, 8, 4


def write_inputs(folder: Path, data: Path, num_chats: int) -> None:
    """The model with its template, and the conversations that fit into a sample."""
    tokenizer = load_gpt2_files(data / "gpt2/vocab.json", data / "gpt2/merges.txt")
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        max_sequence_length=LENGTH,
        num_layers=6,
        hidden_size=384,
        ffn_size=1024,
        num_heads=6,
        num_kv_heads=6,
        tied_embedding=True,
    )
    model = build_model(config)
    initialise(model, config, seed=0)
    base = LoadedModel(config=config, model=model.eval(), tokenizer=tokenizer, source=Path("random"))
    write_huggingface(load(with_template(as_lazy(base), "chatml"), device="cpu"), folder / "model")
    chats = []
    with open_decompressed(data / "corpus_en/reddit_selfposts.jsonl.zst") as lines:
        for line in lines:
            asked, _, answered = json.loads(line)["text"].partition("\n\n")
            if not asked.strip() or not answered.strip():
                continue
            if len(tokenizer.encode(asked)) + len(tokenizer.encode(answered)) < LENGTH - 16:
                turns = (("user", asked), ("assistant", answered))
                chats.append({"messages": [{"role": role, "content": text} for role, text in turns]})
            if len(chats) == num_chats:
                break
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))


def measure_groundup(folder: Path, steps: int, threads: int, bf16: bool) -> dict[str, Any]:
    """Seconds and tokens of each step but the first, from the run's own records."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        words = (
            *("finetune", str(folder / "model"), "--data", str(folder / "chats.jsonl"), f"run_dir={run_dir}"),
            *(f"num_steps={steps}", f"global_batch_size={BATCH}", f"micro_batch_size={MICRO}", "device=cpu"),
            *(f"data.sequence_length={LENGTH}", "data.split=1,0,0", "validation.interval=0"),
            *("log.interval=1", f"threads={threads}", f"precision={'bf16' if bf16 else 'fp32'}"),
            "stage.examples=0",
        )
        run_process([sys.executable, "-m", "groundup", *words])
        lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
        log = (Path(run_dir) / "train.log").read_text()
    pairs = itertools.pairwise(records)
    seconds = [(after["tokens"] - before["tokens"]) / after["tokens_per_second"] for before, after in pairs]
    padding = float(log.split("tokens of padding (")[1].split("%")[0]) / 100
    return {"seconds": seconds, "tokens": [BATCH * (LENGTH + 1) * (1 - padding)] * len(seconds)}


def measure_trl(
    folder: Path, python: Path, steps: int, threads: int, bf16: bool, *, packing: bool
) -> dict[str, Any]:
    """The same of TRL; padded it takes as many conversations a step as packed samples hold on average."""
    order = {
        **{"folder": str(folder), "packing": packing, "length": LENGTH, "micro": MICRO, "batch": BATCH},
        **{"steps": steps, "threads": threads, "bf16": bf16, "out": str(folder / "trl")},
    }
    if not packing:
        order |= {"micro": 2 * MICRO, "batch": 2 * BATCH}
    command = [str(python), str(BASELINES_DIR / "trl_sft.py"), json.dumps(order)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"TRL failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trl-python", type=Path, required=True, help="Python that has TRL.")
    parser.add_argument("--data", type=Path, required=True, help="Folder with gpt2/ and corpus_en/.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--chats", type=int, default=1200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="Do not wait for an idle machine.")
    arguments = parser.parse_args()
    machine = describe_machine("torch")
    bf16 = bool(machine.get("avx512_bf16")) and torch.backends.mkldnn.is_available()
    rates: dict[str, list[float]] = {}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, arguments.data, arguments.chats)
        given = (arguments.steps, arguments.threads, bf16)
        python = arguments.trl_python
        contenders = {
            "groundup, packed": lambda: measure_groundup(folder, *given),
            "TRL, packed": lambda: measure_trl(folder, python, *given, packing=True),
            "TRL, padded": lambda: measure_trl(folder, python, *given, packing=False),
        }
        for _ in range(arguments.rounds):
            for contender, measure in contenders.items():
                if not arguments.busy:
                    wait_for_idle_cpu()
                found = measure()
                versions |= found.get("versions", {})
                each = [
                    tokens / seconds
                    for tokens, seconds in zip(found["tokens"], found["seconds"], strict=True)
                ]
                rates.setdefault(contender, []).extend(each)
                print(f"{contender}: {statistics.median(each):,.0f} tokens/s", flush=True)
    medians = {contender: statistics.median(each) for contender, each in rates.items()}
    best = max(rate for contender, rate in medians.items() if contender.startswith("TRL"))
    result = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
        "busy": arguments.busy,
        "settings": {
            "length": LENGTH,
            "batch": BATCH,
            "micro_batch": MICRO,
            "bf16": bf16,
            "threads": arguments.threads,
        },
        "tokens_per_second": medians,
        "over_best_trl": medians["groundup, packed"] / best,
        "rates": rates,
    }
    (RESULTS_DIR / "finetune.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS_DIR / "finetune.md").write_text(page(result))
    print(f"{result['over_best_trl']:.2f} times TRL's better way")


def page(result: dict[str, Any]) -> str:
    """The results in Markdown."""
    settings = result["settings"]
    facts = {
        **result["machine"],
        **{f"TRL's {name}": version for name, version in result["versions"].items()},
    }
    rows = [f"| {name} | {rate:,.0f} |" for name, rate in result["tokens_per_second"].items()]
    busy = " **The machine did other work meanwhile.**" if result["busy"] else ""
    lines = [
        "# Supervised fine-tuning beside TRL",
        "",
        f"{result['date']}; a Llama of 6 layers, width 384 and GPT-2's vocabulary, samples of"
        f" {settings['length']} tokens, {settings['batch']} a step, {'bf16' if settings['bf16'] else 'fp32'},"
        f" {settings['threads']} threads; medians of steps in processes that take turns; tokens without"
        f" padding. Made by `benchmarks/finetune.py`.{busy}",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "| | tokens/s |",
        "|---|---|",
        *rows,
        "",
        f"groundup is {result['over_best_trl']:.2f} times as quick as TRL's better way.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
