"""``groundup generate``, ``convert`` and ``eval``, as a user types them."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from groundup.checkpoint.export import ExportManifest
from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.checkpoint.parity import Parity
from groundup.cli.app import build_app
from groundup.cli.completion import prompt_ids
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.core.files import read_json
from groundup.core.manifest import read_manifest
from groundup.inference.engine import Engine
from groundup.inference.int8_linear import has_int8
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from tests.tiny import END, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_huggingface(tiny_model("gpt2"), folder)
    return folder


@pytest.fixture
def groundup(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line; returns its stdout."""

    def run(*arguments: object) -> str:
        build_app()([str(argument) for argument in arguments], result_action="return_value")
        return capsys.readouterr().out

    return run


def expected_text(prompt: str, **settings: float) -> str:
    loaded = tiny_model("gpt2")
    [found] = Engine(loaded).generate(
        [loaded.tokenizer.encode(prompt)],
        sampling=Sampling(**settings),  # type: ignore[arg-type]
        max_new_tokens=12,
        seed=4,
        stop_ids=(299,),
    )
    return prompt + found.text


def test_generate_prints_prompt_and_completion(groundup: Callable[..., str], model: Path) -> None:
    command = ("generate", model, "--prompt", "the sea", "--max-new-tokens", 12, "--seed", 4)
    assert groundup(*command) == expected_text("the sea", temperature=0.8) + "\n"
    assert groundup(*command) == groundup(*command)
    assert groundup(*command, "--temperature", 0) == expected_text("the sea", temperature=0) + "\n"
    filtered = expected_text("the sea", temperature=2.0, top_k=9, top_p=0.9) + "\n"
    assert groundup(*command, "--temperature", 2, "--top-k", 9, "--top-p", 0.9) == filtered


def test_generate_takes_prompts_from_everywhere(
    groundup: Callable[..., str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", model, "--max-new-tokens", 12, "--seed", 4)
    expected = expected_text("-- two\nlines", temperature=0.8) + "\n"
    assert groundup(*command, "--prompt", "-- two\nlines") == expected
    (tmp_path / "prompt.txt").write_text("-- two\nlines")
    assert groundup(*command, "--prompt-file", tmp_path / "prompt.txt") == expected
    monkeypatch.setattr(sys.stdin, "read", lambda: "-- two\nlines\n", raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert groundup(*command) == expected
    monkeypatch.setattr(sys.stdin, "read", lambda: "", raising=False)
    with pytest.raises(ConfigError, match="stdin is empty"):
        groundup(*command)
    assert groundup(*command, "--prompt", "") != "\n"


def test_generate_asks_on_a_terminal(
    groundup: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["the sea", "", "x" * 100, "stop", "never read"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    out = groundup("generate", model, "--max-new-tokens", 12, "--seed", 4)
    assert out == expected_text("the sea", temperature=0.8) + "\n"
    assert next(answers) == "never read"


def test_generate_several_samples(groundup: Callable[..., str], model: Path) -> None:
    command = ("generate", model, "--prompt", "the sea", "--max-new-tokens", 12, "--seed", 4)
    out = groundup(*command, "--num-samples", 3)
    assert out.startswith(
        f"--- sample 1 of 3\n{expected_text('the sea', temperature=0.8)}\n--- sample 2 of 3\n"
    )
    with pytest.raises(ConfigError, match="all 3 samples are the same"):
        groundup(*command, "--num-samples", 3, "--temperature", 0)


def test_generate_refuses_what_makes_no_sense(
    groundup: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    for arguments, message in (
        (("--prompt", "a", "--top-p", "1.5"), "command line: --top-p = 1.5"),
        (("--prompt", "a", "--prompt-file", "b"), "both given"),
        (("--prompt", "a", "--max-new-tokens", "0"), "1 or more"),
        (("--prompt-file", tmp_path / "absent"), "cannot read the prompt"),
        (("--prompt", "x" * 100), "has 100 tokens, the model's context holds 64"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            groundup("generate", model, *arguments)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        groundup("generate", tmp_path / "absent", "--prompt", "a")


def test_convert_writes_and_compares(groundup: Callable[..., str], model: Path, tmp_path: Path) -> None:
    out = groundup("convert", model, tmp_path / "a", "--to", "hf")
    assert "largest difference of logits 0.0e+00, top-1 agreement 100.0%" in out
    assert read_huggingface(tmp_path / "a").config == tiny_model("gpt2").config
    read_manifest(tmp_path / "a" / "groundup_export.json", ExportManifest)
    out = groundup("convert", model, tmp_path / "a", "--to", "hf", "--dtype", "float16")
    assert "rounding to float16: largest difference" in out
    assert read_json(tmp_path / "a" / "config.json")["dtype"] == "float16"


def test_convert_fails_when_the_models_differ(
    groundup: Callable[..., str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for difference, message in ((1e-3, "differs from the original"), (float("nan"), "logits are not finite")):
        parity = Parity(max_difference=difference, top1_agreement=1.0)
        monkeypatch.setattr("groundup.checkpoint.proof.compare_stored", lambda *_, found=parity: found)
        with pytest.raises(CheckpointError, match=message):
            groundup("convert", model, tmp_path / "a", "--to", "hf")


def test_eval_prints_a_table_or_json(groundup: Callable[..., str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the tide and the ebb " * 30)
    (tmp_path / "more.txt").write_text("é")
    command = ("eval", model, "--tasks", "perplexity", "--data", tmp_path / "text.txt", tmp_path / "more.txt")
    found = json.loads(groundup(*command, "--json"))
    ids = tiny_model("gpt2").tokenizer.encode("the tide and the ebb " * 30)
    assert found["tokens"] == len(ids) + 3
    assert found["bytes"] == 21 * 30 - 1 + 2
    assert found["loss"] > found["unigram_entropy"] > 1
    table = groundup(*command)
    assert f"{found['loss']:.4f}" in table
    assert "bits per byte" in table
    shorter = json.loads(groundup(*command, "perplexity.max_tokens=50", "perplexity.batch_size=2", "--json"))
    assert (shorter["tokens"], shorter["max_tokens"], shorter["split"]) == (50, 50, "")
    assert shorter["data"] == [str(tmp_path / "text.txt"), str(tmp_path / "more.txt")]


def test_eval_measures_several_tasks_at_once(
    groundup: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "passages.jsonl").write_text('{"text": "the tide and the ebb"}\n' * 5)
    command = ("eval", model, "lambada.limit=3", "--data", tmp_path / "passages.jsonl")
    for tasks in (["lambada,perplexity"], ["lambada", "perplexity", "perplexity.max_tokens=9"]):
        first, second = map(json.loads, groundup(*command, "--json", "--tasks", *tasks).splitlines())
        assert (first["task"], first["passages"], first["limit"]) == ("lambada", 3, 3)
        assert (second["task"], second["tokens"] == 9) == ("perplexity", len(tasks) > 1)
    table = groundup(*command, "--tasks", "lambada,perplexity").splitlines()
    assert table[1].endswith("  strict, higher is better")
    begins = next(number for number, line in enumerate(table) if line.startswith("perplexity of "))
    assert table[begins + 1].endswith("  nats a token, lower is better")
    assert table[begins + 4].endswith("  nats a token")


@pytest.mark.parametrize("verb", ["generate", "convert", "eval"])
def test_help_shows_an_example(groundup: Callable[..., str], verb: str) -> None:
    assert f"groundup {verb} " in groundup(verb, "--help").split("For example")[1]


def test_generate_completes_a_file_of_prompts(
    groundup: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the sea", "id": 7}\n{"prompt": "é 🙂"}\n')
    command = ("generate", model, "--file", prompts, "--max-new-tokens", 12, "--seed", 4)
    first, second = map(json.loads, groundup(*command).splitlines())
    assert first["id"] == 7
    assert "the sea" + first["completion"] == expected_text("the sea", temperature=0.8)
    assert (first["finished"], second["prompt"]) == ("stop", "é 🙂")
    lines = [
        json.loads(line) for line in groundup(*command, "--num-samples", 2, "--logprobs", 3).splitlines()
    ]
    assert [(line["prompt"], line["sample"]) for line in lines] == [
        ("the sea", 1),
        ("the sea", 2),
        ("é 🙂", 1),
        ("é 🙂", 2),
    ]
    assert lines[0]["completion"] == first["completion"] != lines[1]["completion"]
    told = [token for line in lines for token in line["logprobs"]]
    assert len(told) > 12
    assert all(len(token["top"]) == 3 and token["logprob"] <= token["top"][0][1] <= 0 for token in told)
    whole = second["completion"]
    assert len(whole) > 5
    stopped = json.loads(groundup(*command, "--stop", whole[3:5]).splitlines()[1])
    assert (stopped["completion"], stopped["finished"]) == (whole[: whole.index(whole[3:5])], "stop")
    for dtype in ("bfloat16", *(["int8"] if has_int8(torch.device("cpu")) else [])):
        assert groundup(*command, "--dtype", dtype) == groundup(*command, "--dtype", dtype)


def test_generate_searches_with_beams(groundup: Callable[..., str], model: Path, tmp_path: Path) -> None:
    loaded = tiny_model("gpt2")
    request = Request(
        prompt=loaded.tokenizer.encode("the sea"),
        sampling=Sampling(temperature=0),
        max_new_tokens=12,
        stop_ids=(299,),
        num_beams=3,
        length_penalty=0.5,
    )
    [expected] = Engine(loaded).complete([request])
    command = ("generate", model, "--max-new-tokens", 12, "--num-beams", 3, "--length-penalty", 0.5)
    assert groundup(*command, "--prompt", "the sea") == f"the sea{expected.text}\n"
    texts = [f"--- sample {number} of 2\nthe sea{expected.beams[number - 1].text}\n" for number in (1, 2)]
    assert groundup(*command, "--prompt", "the sea", "--num-samples", 2) == "".join(texts)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the sea"}\n{"prompt": "a"}\n')
    lines = list(map(json.loads, groundup(*command, "--file", prompts, "--num-samples", 3).splitlines()))
    assert [(line["prompt"], line["sample"]) for line in lines] == [
        (p, n) for p in ("the sea", "a") for n in (1, 2, 3)
    ]
    assert [(line["completion"], line["finished"]) for line in lines[:3]] == [
        (beam.text, beam.finished) for beam in expected.beams
    ]
    assert [line["score"] for line in lines[:3]] == pytest.approx([beam.score for beam in expected.beams])
    for arguments, message in (
        (("--num-beams", 2, "--num-samples", 3), "2 beams do not give 3 samples"),
        (("--num-beams", 2, "--top-k", 3, "--temperature", 2), "--temperature and --top-k have no effect"),
        (("--num-beams", 2, "--stop", "x"), "beam search takes no stop strings"),
        (("--num-beams", 65), "num_beams is 65, beam search takes 2 to 64"),
        (("--length-penalty", 2), "num_beams is 1"),
        (("layout.tp=0",), "layout.tp"),
        (("tp=2",), "tp=2 is no setting"),
        (("layout.cp=2",), "of training"),
        (("layout.dp=2",), "several services"),
        (("layout.tp=2", "--dtype", "int8"), "one process"),
    ):
        with pytest.raises(ConfigError, match=message):
            groundup("generate", model, "--prompt", "a", *arguments)


def test_special_tokens_end_texts_and_stand_in_prompts(
    groundup: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    loaded = tiny_model("gpt2", vocab_size=301)
    bpe = cast(ByteLevelTokenizer, loaded.tokenizer).bpe
    bpe = dataclasses.replace(bpe, specials={**bpe.specials, "<|im_end|>": 300})
    loaded = dataclasses.replace(loaded, tokenizer=ByteLevelTokenizer(bpe, end_of_document=END))
    write_huggingface(loaded, tmp_path)
    request = Request(
        prompt=[97, 300, 98],
        sampling=Sampling(temperature=9.0),
        max_new_tokens=500,
        overflow="slide",
        stop_ids=(299,),
    )
    seed, whole = next(
        (seed, found)
        for seed in range(20)
        for found in Engine(loaded).complete([dataclasses.replace(request, seed=seed)])
        if len(found.ids) > 5 and 300 in found.ids[5:]
    )
    text = loaded.tokenizer.decode(whole.ids[: whole.ids.index(300)])
    command = ("--temperature", 9, "--max-new-tokens", 500, "--overflow", "slide", "--seed", seed)
    prompt = "a<|im_end|>b"
    out = groundup(
        "generate", tmp_path, "--prompt", prompt, "--special-tokens", "--stop", "<|im_end|>", *command
    )
    assert out == f"{prompt}{text}\n"
    assert prompt_ids(loaded, prompt) == loaded.tokenizer.encode(prompt)
    assert 300 not in prompt_ids(loaded, prompt)


def test_generate_names_the_line_of_a_bad_prompt(
    groundup: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    good = '{"prompt": "a"}\n'
    for lines, message in (
        (good + "{", r"prompts\.jsonl:2: not JSON"),
        (good + '{"text": "a"}', r'prompts\.jsonl:2: not an object with a text "prompt"'),
        (good + good + json.dumps({"prompt": "x" * 100}), r"prompts\.jsonl:3: the prompt has 100 tokens"),
        ("", "has no prompts"),
    ):
        prompts.write_text(lines)
        with pytest.raises(DataError, match=message):
            groundup("generate", model, "--file", prompts)
    for arguments, message in (
        (("--file", prompts, "--prompt", "a"), "--prompt and --file are both given"),
        (("--prompt", "a", "--logprobs", 1), "for --file only"),
        (("--prompt", "a", "--temperature", 0, "--min-p", 0.1), "no effect at temperature 0"),
        (("--prompt", "a", "--repetition-penalty", 0), "--repetition-penalty"),
    ):
        with pytest.raises(ConfigError, match=message):
            groundup("generate", model, *arguments)
    with pytest.raises(DataError, match="exceed the context of 64"):
        groundup("generate", model, "--prompt", "a", "--overflow", "refuse")
    out = groundup("generate", model, "--prompt", "a", "--overflow", "slide", "--temperature", 0)
    assert len(out) > 64
