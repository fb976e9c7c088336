"""``groundup eval``: what it is given that cannot be measured."""

from pathlib import Path

import pytest

from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.native.model import write_native
from groundup.cli.app import run
from groundup.cli.evaluate import _split_of_run
from groundup.core.errors import ConfigError, DataError
from groundup.eval.tasks import Lambada
from groundup.tokens.sampling.data_config import DataConfig
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tasks", "lambada", "--max-tokens", "5"], "--max-tokens has no effect on --tasks lambada"),
        (["--tasks", "lambada", "--split", "9,1", "--split-name", "test"], "--split-name, --split has no"),
        (["--max-tokens", "-5"], "command line: --max-tokens = -5: input should be greater"),
        (["--batch-size", "0"], "command line: --batch-size = 0"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groundup.checkpoint.formats.open_model", lambda *_, **__: tiny_model("gpt2"))
    with pytest.raises(ConfigError, match=says) as raised:
        run(["eval", "model", "--data", "x.txt", *words])
    assert "task." not in str(raised.value)


def test_no_passage_cannot_be_measured(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no passage in it"):
        Lambada().measure(tiny_model("gpt2"), [tmp_path / "empty.jsonl"])
    (tmp_path / "a.jsonl").write_text('{"title": "two words"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*the keys are: title.* with --key"):
        Lambada().measure(tiny_model("gpt2"), [tmp_path / "a.jsonl"])


def test_a_converted_model_is_measured_on_the_usual_split(tmp_path: Path) -> None:
    folder = write_native(as_lazy(tiny_model("gpt2")), tmp_path / "run")
    assert _split_of_run(folder) == DataConfig.split
