"""Every command of ``examples/`` trains, shrunk, on as many gloo ranks as its layout asks for."""

import re
from pathlib import Path

import orjson
import pytest

from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.train.config import TrainConfig
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_data, run

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = re.compile(r"#   groundup train examples/(\S+\.yaml)((?: \S+=\S+)*)")
SHRUNK = (
    "model.vocab_size=300",
    "model.max_sequence_length=32",
    "model.num_layers=4",
    "model.hidden_size=32",
    "model.num_heads=4",
    "model.ffn_size=64",
    "data.sequence_length=32",
    "data.split=98,1,1",
    "num_steps=2",
    "micro_batch_size=1",
    "global_batch_size=4",
    "precision=fp32",
    "device=cpu",
    "log.interval=1",
    "validation.interval=1",
    "validation.num_batches=1",
    "schedule_steps=2",
    "warmup.kind=steps",
)
COMMANDS = sorted(
    (match[1], match[2].split())
    for file in EXAMPLES.glob("*.yaml")
    for line in file.read_text().splitlines()
    if (match := COMMAND.match(line))
)


def test_each_example_says_how_it_is_run() -> None:
    assert {name for name, _ in COMMANDS} == {file.name for file in EXAMPLES.glob("*.yaml")}


@pytest.mark.example
def test_all_commands_train(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    by_ranks: dict[int, list[TrainConfig]] = {}
    for number, (name, overrides) in enumerate(COMMANDS):
        where = (f"run_dir={tmp_path / str(number)}", f"data.path={data}")
        config = resolve(
            TrainConfig, file=EXAMPLES / name, overrides=[*overrides, *SHRUNK, *where], presets=presets()
        ).value
        by_ranks.setdefault(config.layout.num_ranks, []).append(config)
    assert sorted(by_ranks) == [1, 2, 4, 8]
    for world_size, configs in by_ranks.items():
        if world_size > 1:
            train_on_ranks(world_size, configs, tmp_path)
        for config in configs:
            if world_size == 1:
                run(config)
            records = [orjson.loads(line) for line in (config.run_dir / "metrics.jsonl").open("rb")]
            assert [r["step"] for r in records if r["kind"] == "train"] == [1, 2], config.layout
