"""``groundup eval``: what it is given that cannot be measured."""

from pathlib import Path

import pytest

from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.native.model import write_native
from groundup.cli.app import run
from groundup.core.errors import ConfigError, DataError
from groundup.eval.tasks import Lambada, PerplexityTask
from groundup.eval.token_data import split_of_run
from groundup.tokens.sampling.data_config import DataConfig
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--tasks", "lambda"],
            "--tasks: 'lambda' is no task; there are perplexity, lambada. Did you mean 'lambada'?",
        ),
        (["--tasks", "lambada", "lambada.limt=5"], "unknown key lambada.limt. Did you mean 'limit'?"),
        (["lambda.limit=5"], "unknown key lambda. Did you mean 'lambada'?"),
        (
            ["--tasks", "lambada", "perplexity.max_tokens=5"],
            "perplexity.max_tokens=5): no effect on --tasks lambada",
        ),
        (
            ["perplexity.max_tokens=-5"],
            "command line (perplexity.max_tokens=-5): perplexity.max_tokens = -5: input",
        ),
        (["perplexity.batch_size=0"], "perplexity.batch_size = 0: input should be greater"),
        (["perplexity.split=9,1"], "perplexity: split has no effect on all documents"),
        (["perplexity.kind=lambada"], "perplexity.kind = 'lambada': input should be 'perplexity'"),
        (
            ["--json", "more.txt"],
            "command line: more.txt is no option of a task. Write e.g. lambada.limit=200",
        ),
        (["--max-tokens", "5"], "Options of a task are written as TASK.max_tokens=5, without dashes."),
    ],
)
def test_what_is_wrong_is_named_before_a_model_is_read(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(["eval", "no/model", "--data", "x.txt", *words])
    assert says in str(raised.value)


def test_options_alone_are_no_data() -> None:
    with pytest.raises(ConfigError, match="--data: names nothing to measure on"):
        run(["eval", "no/model", "--data", "lambada.limit=3"])


def test_texts_have_no_splits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    with pytest.raises(ConfigError, match=r"perplexity\.split_name: texts have no test split"):
        PerplexityTask(split_name="test").measure(tiny_model("gpt2"), [tmp_path / "a.txt"])


def test_no_passage_cannot_be_measured(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no passage in it"):
        Lambada().measure(tiny_model("gpt2"), [tmp_path / "empty.jsonl"])
    (tmp_path / "a.jsonl").write_text('{"title": "two words"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*the keys are: title.* with lambada\.text_key"):
        Lambada().measure(tiny_model("gpt2"), [tmp_path / "a.jsonl"])


def test_a_converted_model_is_measured_on_the_usual_split(tmp_path: Path) -> None:
    folder = write_native(as_lazy(tiny_model("gpt2")), tmp_path / "run")
    assert split_of_run(folder) == DataConfig.split
