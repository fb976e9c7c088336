"""The bytes that a step is expected to send, against those that ranks were counted to send."""

import dataclasses
import json
from pathlib import Path

import pytest

from groundup.models.gpt2 import GPT2Config
from groundup.parallel.activation_checkpointing import Recompute
from groundup.plan.layer_memory import MicroBatch
from groundup.plan.rank_memory import Step
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
    first, _, more = name.partition(", ")
    layout, recompute = parse_layout(first), Recompute()
    if more == "bf16":
        layout = dataclasses.replace(layout, reduce_dtype="bf16")
    elif more == "shard 2":
        layout = dataclasses.replace(layout, shard=2)
    elif more:
        recompute = Recompute(mode=more)
    batch = MicroBatch(rows=2, length=64, tp=layout.tp, cp=layout.cp, itemsize=4, on_gpu=False)
    return Step(
        model=MODEL,
        optimizer=Sgd(),
        layout=layout.over(layout.num_ranks),
        recompute=recompute,
        batch=batch,
        num_micro_batches=4 // layout.dp,
    )


@pytest.mark.parametrize("row", ROWS, ids=[row["layout"] for row in ROWS])
def test_as_many_bytes_as_were_counted(row):
    assert sum(bytes_sent(step(row["layout"])).values()) == pytest.approx(row["sent"], rel=0.02)
