"""The bytes that a step is expected to send, against those that ranks were counted to send."""

import dataclasses
import json
from pathlib import Path

import pytest

from groundup.models.gpt2 import GPT2Config
from groundup.parallel.activation_checkpointing import Recompute
from groundup.plan.layer_memory import MicroBatch
from groundup.plan.rank_memory import Step
from groundup.plan.step_time import Machines, step_time
from groundup.plan.traffic import bytes_sent
from groundup.train.optim import Sgd
from groundup.verify.parallel import parse_layout

COUNTED = Path(__file__).resolve().parents[3] / "benchmarks/results/communication.json"
ROWS = json.loads(COUNTED.read_text())["rows"]
MODEL = GPT2Config(
    vocab_size=384, max_sequence_length=64, num_layers=4, hidden_size=64, num_heads=4, ffn_size=256
)


def step(name: str) -> Step:
    """The step that ``benchmarks/communication.py`` counts."""
    layout = parse_layout(name.partition(",")[0])
    if name.endswith("bf16"):
        layout = dataclasses.replace(layout, reduce_dtype="bf16")
    batch = MicroBatch(rows=2, length=64, tp=layout.tp, cp=layout.cp, itemsize=4, on_gpu=False)
    return Step(
        model=MODEL,
        optimizer=Sgd(),
        layout=layout.over(layout.num_ranks),
        recompute=Recompute(),
        batch=batch,
        num_micro_batches=4 // layout.dp,
    )


@pytest.mark.parametrize("row", ROWS, ids=[row["layout"] for row in ROWS])
def test_as_many_bytes_as_were_counted(row):
    assert sum(bytes_sent(step(row["layout"])).values()) == pytest.approx(row["sent"], rel=0.02)


def test_a_step_takes_its_products_and_what_is_not_hidden():
    machines = Machines(flops=1e12, link_gb=100)
    alone = step_time(dataclasses.replace(step("dp2"), layout=parse_layout("dp1").over(1)), machines)
    assert alone.total == alone.products
    pipeline = step_time(step("pp2"), machines)
    assert pipeline.bubble == pytest.approx(pipeline.products / 4)  # (pp - 1) / m
    again = step_time(dataclasses.replace(step("pp2"), recompute=Recompute(mode="full")), machines)
    assert again.products == pytest.approx(pipeline.products * 4 / 3)
    far = step_time(step("tp2"), dataclasses.replace(machines, per_machine=1))
    assert far.tensor > step_time(step("tp2"), machines).tensor > 0
