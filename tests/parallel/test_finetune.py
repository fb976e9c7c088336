"""Fine-tuning is the same under each layout, in losses and gradient norms."""

import dataclasses
from pathlib import Path

import pytest

from groundup.parallel.layout import Layout
from tests.chats import finetuning, write_base, write_talks
from tests.parallel.ranks import train_on_ranks
from tests.runs import records_of, run

LAYOUTS = {
    "dp2": Layout(dp=2),
    "dp2-zero1": Layout(dp=2, zero=1),
    "dp2-zero3": Layout(dp=2, zero=3),
    "tp2": Layout(tp=2),
    "pp2": Layout(pp=2),
    "cp2": Layout(cp=2),
}


@pytest.mark.exhaustive
def test_conversations_under_each_layout(tmp_path: Path) -> None:
    base, chats = write_base(tmp_path / "base"), write_talks(tmp_path / "chats.jsonl")
    settings = (
        *("data.split=2,1,0", "global_batch_size=4", "num_steps=3", "validation.interval=1"),
        *("optimizer.kind=sgd", "optimizer.lr=0.1", "stage.template=chatml"),
    )
    alone = finetuning(base, chats, tmp_path / "alone", *settings)
    configs = {
        name: dataclasses.replace(alone, run_dir=tmp_path / name, layout=layout)
        for name, layout in LAYOUTS.items()
    }
    expected = _curve(run(alone))
    assert len(expected) == 3 + 3
    train_on_ranks(2, list(configs.values()), tmp_path)
    for name, config in configs.items():
        assert _curve(records_of(config)) == {
            key: pytest.approx(values, rel=1e-5) for key, values in expected.items()
        }, name


def _curve(records: list[dict]) -> dict[tuple[str, int], list[float]]:
    names = ("loss", "grad_norm", "num_tokens")
    return {
        (record["kind"], record["step"]): [record[name] for name in names if name in record]
        for record in records
    }
