"""An engine over the ranks of a layout writes what one process writes."""

import contextlib
import dataclasses
import itertools
import os
import pickle
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy
from groundup.checkpoint.load_over_ranks import load_over_ranks
from groundup.core.errors import ConfigError
from groundup.inference.engine import Engine
from groundup.inference.rank_model import engine_on
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Generation, Request
from groundup.launch.env import RankInfo
from groundup.models import WeightDtypes
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.parallel.mesh import init_distributed, leave_distributed
from groundup.parallel.parallel_model import ParallelModel
from tests.forked import programs
from tests.parallel.ranks import start_ranks
from tests.tiny import tiny_model
from tests.unit.inference.test_beam_search import searches, softened
from tests.unit.inference.test_continuous_batching import requests

SETTINGS = {"max_batch_size": 6, "max_step_tokens": 13, "cache_bytes": 1 << 20}
TINY = {
    "gpt2": {"num_layers": 4},
    "untied": {"name": "gpt2-erf-untied-biasless", "num_layers": 4},
    "one-kv-head": {"name": "llama-grouped-tied", "num_layers": 4, "num_kv_heads": 1},
    "three-heads": {"name": "llama", "num_heads": 3, "num_kv_heads": 1, "hidden_size": 48, "ffn_size": 96},
}
"""Name -> changes of one of ``MODELS``."""
HALF_PRECISION = WeightDtypes(default=torch.bfloat16)
CASES = {
    2: {
        "tp2": (Layout(dp=1, tp=2), ("gpt2", "one-kv-head")),
        "pp2": (Layout(dp=1, pp=2), ("gpt2",)),
        "pp2-uneven": (Layout(dp=1, pp=2, pipeline=PipelineConfig(layers=(3, 1))), ("untied",)),
    },
    3: {"tp3": (Layout(dp=1, tp=3), ("three-heads",))},  # of 384 rows each has 128, the last 44 with ids
    4: {"tp2-pp2": (Layout(dp=1, tp=2, pp=2), ("gpt2", "one-kv-head"))},
}


def tiny(model: str) -> LoadedModel:
    changes: dict[str, Any] = {"name": model, **TINY[model]}
    return softened(tiny_model(**changes))


def wanted() -> list[Request]:
    plain = [
        dataclasses.replace(one, num_prompt_logprobs=2 if number % 3 == 0 else None)
        for number, one in enumerate(requests(7))
    ]
    return [*plain, *searches(1, max_new_tokens=9)]


def answers(engine: Engine) -> tuple[list[Generation], int]:
    return list(engine.complete(wanted())), engine.blocks.num_blocks


def on_rank(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    info = RankInfo(rank, rank, size, size)
    for name, (layout, models) in CASES[size].items():
        mesh = init_distributed(layout, info, torch.device("cpu"))
        for model in models:
            loaded = load_over_ranks(as_lazy(tiny(model)), mesh, precision=contextlib.nullcontext)
            with engine_on(loaded, mesh, dtype=torch.float32, **SETTINGS) as engine:
                assert (engine is None) == (rank > 0)
                if engine:
                    (folder / f"{name}.{model}").write_bytes(pickle.dumps(answers(engine)))
        half = load_over_ranks(
            as_lazy(tiny(models[0])), mesh, precision=contextlib.nullcontext, dtypes=HALF_PRECISION
        )
        assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
        with engine_on(half, mesh, dtype=torch.bfloat16, **SETTINGS) as engine:
            if engine:
                [first, *_] = answers(engine)[0]
                (folder / f"{name}.half").write_bytes(pickle.dumps(first.prompt_logprobs))
    replicas = init_distributed(Layout(dp=size), info, torch.device("cpu"))
    with pytest.raises(ConfigError, match="replicas"):
        engine_on(loaded, replicas, dtype=torch.float32).__enter__()
    leave_distributed()


def meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ranks that are started from now on meet at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))


def assert_same(found: Sequence[Generation], expected: Sequence[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.text, one.finished) == (other.ids, other.text, other.finished)
        assert [beam.ids for beam in one.beams] == [beam.ids for beam in other.beams]
        for mine, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            assert [logprob.chosen for logprob in mine] == pytest.approx(
                [logprob.chosen for logprob in theirs], abs=1e-4
            )
            assert [len(logprob.top) for logprob in mine] == [len(logprob.top) for logprob in theirs]


def mortal_rank(rank: int, size: int, folder: Path) -> None:
    """Rank 1 dies in the midst of a step; rank 0 must learn of it."""
    torch.set_num_threads(1)
    mesh = init_distributed(Layout(dp=1, tp=size), RankInfo(rank, rank, size, size), torch.device("cpu"))
    loaded = load_over_ranks(as_lazy(tiny("gpt2")), mesh, precision=contextlib.nullcontext)
    if rank:
        cast(ParallelModel, loaded.model).model.register_forward_pre_hook(die_late())
    with engine_on(loaded, mesh, dtype=torch.float32, **SETTINGS) as engine:
        assert engine, "it ends only by the loss of rank 1"
        with pytest.raises(RuntimeError) as caught:
            answers(engine)
        (folder / "error").write_text(str(caught.value))
        os._exit(0)  # the others cannot be told


def die_late() -> Callable[..., None]:
    calls = itertools.count()

    def die(*_: object) -> None:
        if next(calls) == 5:
            os._exit(3)

    return die


@pytest.mark.parametrize("size", CASES)
def test_all_ranks_together_are_one_model(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet(monkeypatch)
    ranks = start_ranks(on_rank, (size, tmp_path), size)
    expected = {
        model: answers(Engine(tiny(model), **SETTINGS))
        for _, models in CASES[size].values()
        for model in models
    }
    while not ranks.join():
        pass
    for name, (_, models) in CASES[size].items():
        for model in models:
            found, found_blocks = pickle.loads((tmp_path / f"{name}.{model}").read_bytes())
            assert_same(found, expected[model][0])
            assert found_blocks >= expected[model][1], "a rank has fewer keys and values of each token"
        rounded = pickle.loads((tmp_path / f"{name}.half").read_bytes())
        exact = [logprob.chosen for logprob in expected[models[0]][0][0].prompt_logprobs]
        assert [logprob.chosen for logprob in rounded] == pytest.approx(exact, abs=0.2)


def test_the_death_of_a_rank_ends_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet(monkeypatch)
    ranks = start_ranks(mortal_rank, (2, tmp_path), 2)
    for process in ranks.processes:
        process.join()
    assert [process.exitcode for process in ranks.processes] == [0, 3]
    assert (tmp_path / "error").read_text()


def test_generate_over_ranks_writes_the_same(tmp_path: Path) -> None:
    loaded = tiny("gpt2")
    write_huggingface(loaded, tmp_path)
    settings = ("--max-new-tokens", "12", "--temperature", "0.9", "--seed", "4")
    wanted = Request(
        prompt=loaded.tokenizer.encode("the sea"),
        sampling=Sampling(temperature=0.9),
        max_new_tokens=12,
        seed=4,
        stop_ids=(299,),
    )
    [expected] = Engine(loaded).complete([wanted])
    done = subprocess.run(
        [programs() / "groundup", "generate", tmp_path, "layout.tp=2", "layout.pp=2", *settings],
        input="the sea\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"the sea{expected.text}\n"), done.stderr
    missing = subprocess.run(
        [programs() / "groundup", "generate", tmp_path, "layout.dp=2", "--prompt", "a"],
        capture_output=True,
        text=True,
    )
    assert missing.returncode == 1
    assert "layout.dp" in missing.stderr and "several services" in missing.stderr
