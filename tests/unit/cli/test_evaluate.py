"""``groundup eval``: what it is given that cannot be measured."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.native.model import write_native
from groundup.cli.app import run
from groundup.core.errors import ConfigError, DataError
from groundup.eval.tasks import Lambada, PerplexityTask
from groundup.eval.token_data import split_of_run
from groundup.tokens.sampling.data_config import DataConfig
from tests.task_files import write_task_file
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--tasks", "lambda"],
            "--tasks: 'lambda' is no task; there are perplexity, lambada, hellaswag",
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
        (["perplexity.batch_size=-1"], "perplexity.batch_size = -1: input should be greater"),
        (["perplexity.split=9,1"], "perplexity: split has no effect on all documents"),
        (["perplexity.kind=lambada"], "perplexity.kind = 'lambada': input should be 'perplexity'"),
        (
            ["--json", "more.txt"],
            "command line: more.txt is no option of a task. Write e.g. lambada.limit=200",
        ),
        (["--limit", "5"], "Options of a task are written as TASK.limit=5, without dashes."),
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


def succeed(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert not ended.value.code


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_many_tasks_are_measured_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "model")
    kinds = ["lambada", "hellaswag", "storycloze", "wikitext", "piqa"]
    (tmp_path / "sets").mkdir()
    for kind in kinds:
        write_task_file(kind, tmp_path / "sets")
    shutil.move(tmp_path / "sets/piqa_test.jsonl", tmp_path / "sets/piqa_valid.jsonl")
    command = ["eval", str(tmp_path / "model"), "--tasks", ",".join(kinds), "--data", str(tmp_path / "sets")]
    succeed(
        [*command, "wikitext.stride=4", "--show", "2", "--out", str(tmp_path / "a.json"), "--device", "cpu"]
    )
    shown = capsys.readouterr().out
    for kind in kinds:
        assert f"{kind} of {tmp_path / 'model'} on " in shown
    assert re.search(r"accuracy +\d\.\d{4} ± \d\.\d{4} +strict, higher is better", shown)
    assert re.search(r"GPT-2 124M +0\.3256  published \[1\]", shown)
    assert "[1] lm-evaluation-harness issue 2159" in shown
    assert shown.count("the target is") == 2 * 4
    assert shown.count(" items/s") == 4
    succeed([*command, "wikitext.stride=4", "--json", "--device", "cpu"])
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["task"] == "lambada"
    assert first["passages"] == 3
    succeed(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert {row.split()[0] for row in rows} == set(kinds) - {"wikitext"}
    assert all(row.endswith("1.000") for row in rows)


def test_a_file_of_another_task_is_refused(tmp_path: Path) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "model")
    path = write_task_file("piqa", tmp_path)
    with pytest.raises(DataError, match="has no field 'endings'; it has goal, sol1, sol2, label"):
        run(["eval", str(tmp_path / "model"), "--tasks", "hellaswag", "--data", str(path), "--device", "cpu"])


@pytest.mark.usefixtures("no_network")
def test_what_was_left_out_and_the_average_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of eight tasks, the parts of the centred average; LAMBADA has a word that no context holds."""
    write_huggingface(tiny_model("gpt2"), tmp_path / "model")
    (tmp_path / "sets").mkdir()
    kinds = ["hellaswag", "arc_easy", "arc_challenge", "openbookqa", "sciq"]
    for kind in [*kinds, "lambada", "piqa", "winogrande", "boolq"]:
        path = write_task_file(kind, tmp_path / "sets")
        split = {"piqa": "valid", "winogrande": "dev", "boolq": "val"}.get(kind, "test")
        path.rename(path.with_name(f"{kind}_{split}.jsonl"))
    words = tmp_path / "sets/lambada_test.jsonl"
    words.write_text(words.read_text() + "\n" + json.dumps({"text": f"the sea {'q' * 90}"}))
    tasks = ",".join([*kinds[:-1], "lambada", "piqa", "winogrande", "boolq"])
    command = ["eval", str(tmp_path / "model"), "--tasks", tasks, "--data", str(tmp_path / "sets")]
    succeed([*command, "--out", str(tmp_path / "a.json"), "--device", "cpu"])
    shown = capsys.readouterr().out
    assert re.search(
        r"left out, as the model cannot score them: 1 items; .*lambada_test.jsonl:4: .* holds 64", shown
    )
    average = json.loads((tmp_path / "a.json").read_text())["centred_average"]["value"]
    assert f"centred average of 8 tasks: {average:.4f}, the mean of" in shown
    succeed([*command, "--json", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["task"] == "centred_average"
    assert lines[-1]["value"] == pytest.approx(average)
    assert {line["task"]: line["num_skipped"] for line in lines[:-1]}["lambada"] == 1
