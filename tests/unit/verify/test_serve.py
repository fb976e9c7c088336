"""``groundup verify serve`` finds nothing in a sound engine, and what is wrong in a broken one."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.inference.block_manager import BlockManager
from groundup.inference.engine import Engine
from groundup.inference.paged_cache import PagedCache
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.parallel.layout import Layout
from groundup.verify.serve import Agreement, _Reference, layouts_to_serve, verify_serve
from tests.tiny import tiny_model


def command(words: Sequence[str]) -> None:
    build_app()(words, result_action="return_value")


def in_process(folder: Path, **spoiled: Any) -> Any:
    """Completes the prompts by the verb itself, without ranks, and spoils what it says of the third."""

    def generate(layout: Layout, file: Path) -> Sequence[dict[str, Any]]:
        assert layout.num_ranks > 1
        out = folder / "out.jsonl"
        with out.open("w") as stream, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", stream)
            settings = ["--temperature", "0", "--max-new-tokens", "8", "--logprobs", "0"]
            command(["generate", str(folder), "--file", str(file), *settings])
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        lines[2]["logprobs"][4] |= spoiled
        return lines

    return generate


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    loaded, folder = tiny_model("llama-grouped-tied"), tmp_path_factory.mktemp("model")
    write_huggingface(loaded, folder)
    return loaded, folder


def agreements(model: tuple[LoadedModel, Path], scratch: Path, **spoiled: Any) -> dict[str, Agreement]:
    loaded, folder = model
    found = verify_serve(
        loaded, layouts_to_serve(["tp2"]), scratch, max_new_tokens=8, generate=in_process(folder, **spoiled)
    )
    return {one.path: one for one in found}


def find_wrong_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets known beginnings of prompts come from the blocks behind theirs."""
    find = BlockManager.find

    def find_wrong(blocks: BlockManager, digests: Sequence[bytes]) -> list[int]:
        return [(block + 1) % blocks.num_blocks for block in find(blocks, digests)]

    monkeypatch.setattr(BlockManager, "find", find_wrong)


def test_a_sound_engine_is_right(model: tuple[LoadedModel, Path], tmp_path: Path) -> None:
    found = agreements(model, tmp_path)
    assert list(found) == [
        "one by one",
        "together, prompts in chunks, cache short",
        "together",
        "again, beginnings in the cache",
        "drawn, alone and together",
        "4 beams",
        "tp2",
    ]
    assert all(one.is_right and one.num_texts > 5 and one.num_tokens > 40 for one in found.values())


def test_a_layout_that_says_something_else_is_wrong(model: tuple[LoadedModel, Path], tmp_path: Path) -> None:
    for spoiled in ({"token": "!!"}, {"logprob": -9.0}):
        found = agreements(model, tmp_path, **spoiled)
        assert [path for path, one in found.items() if not one.is_right] == ["tp2"]
    assert found["tp2"].difference is not None and found["tp2"].difference > 1


def test_a_wrong_cache_is_found(
    model: tuple[LoadedModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_wrong_blocks(monkeypatch)
    found = agreements(model, tmp_path)
    assert not found["again, beginnings in the cache"].is_right
    prepare = PagedCache.prepare

    def forgetful(cache: PagedCache, spans: Sequence[Any], **others: Any) -> None:
        prepare(cache, [dataclasses.replace(one, start=max(0, one.start - 1)) for one in spans], **others)

    monkeypatch.setattr(PagedCache, "prepare", forgetful)
    loaded, folder = model
    checks = verify_serve(loaded, {}, tmp_path, max_new_tokens=8, generate=in_process(folder))
    first = next(iter(checks))
    assert "nats above it" in first.error and not first.is_right


def test_ties_are_counted_and_allowed() -> None:
    loaded = tiny_model("gpt2-erf-untied-biasless")
    with torch.no_grad():  # id n + 150 is as probable as id n
        loaded.model.head.weight[150:300] = loaded.model.head.weight[:150]  # type: ignore[union-attr, operator, index]
    request = Request(prompt=[5], sampling=Sampling(temperature=0), max_new_tokens=3, num_logprobs=0)
    [found] = Engine(loaded).complete([request])
    reference = _Reference(loaded)
    assert reference.agreement("", [request], [found]).num_ties == 0
    for other, ties, right in (((found.ids[-1] + 150) % 300, 1, True), ((found.ids[-1] + 1) % 300, 1, False)):
        changed = dataclasses.replace(found, ids=(*found.ids[:-1], other))
        agreement = reference.agreement("", [request], [changed])
        assert (agreement.num_ties, agreement.is_right) == (ties, right)


def test_the_verb_reports_and_fails(
    model: tuple[LoadedModel, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = model
    command(["verify", "serve", str(folder), "--max-new-tokens", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["path", "texts", "tokens", "difference", "allowed", "verdict"]
    assert len(lines) == 7 and all(line.endswith("right") for line in lines[1:])
    find_wrong_blocks(monkeypatch)
    with pytest.raises(CheckpointError, match=r"not what the model says: .*again, beginnings in the cache"):
        command(["verify", "serve", str(folder), "--max-new-tokens", "4"])
    assert "WRONG text " in capsys.readouterr().out
    for words, error, message in (
        (["dp2"], ConfigError, "dp2 is of training"),
        (["tp"], ConfigError, "'tp' is no layout"),
        (["--max-new-tokens", "0"], ConfigError, "not 1 or more"),
        (["--max-new-tokens", "64"], DataError, "holds no prompt"),
    ):
        capsys.readouterr()
        with pytest.raises(error, match=message):
            command(["verify", "serve", str(folder), *words])
        assert error is DataError or not capsys.readouterr().out
