"""What a command says to type next can be typed, whatever the paths are."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.cli.app import build_app
from tests.runs import write_run
from tests.tiny import tiny_model


@pytest.fixture
def next_words(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs a command line; returns the words of the command in its last line."""

    def run(*arguments: object) -> list[str]:
        build_app()([str(argument) for argument in arguments], result_action="return_value")
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("Next: groundup ")
        return shlex.split(last.removeprefix("Next: "))

    return run


@pytest.mark.parametrize("name", ["plain", "with blank", "it's", "$HOME;#"])
def test_paths_are_quoted_for_the_shell(
    next_words: Callable[..., list[str]], tmp_path: Path, name: str
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "model")
    out = tmp_path / name
    assert next_words("convert", tmp_path / "model", out, "--to", "native") == [
        "groundup",
        "generate",
        str(out),
    ]


def test_a_run_in_a_folder_with_a_blank(next_words: Callable[..., list[str]], tmp_path: Path) -> None:
    write_run(tmp_path, "num_steps=1")
    run_dir = tmp_path / "my run"
    words = next_words("train", tmp_path / "run.yaml", f"run_dir={run_dir}")
    assert words == ["groundup", "generate", str(run_dir), "--prompt", "..."]
