"""What lies beside a chat model's weights comes along through every format, and is held to its tokenizer."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.companions import read_companions
from groundup.checkpoint.formats import open_lazy, open_model
from groundup.checkpoint.huggingface.weights import open_huggingface, write_huggingface
from groundup.checkpoint.native.model import sound_companions
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError
from groundup.core.manifest import describe_files
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from tests.tiny import END, tiny_model, tiny_tokenizer

NAMES = ("<|im_start|>", "<|im_end|>")
CPU = torch.device("cpu")
END_IDS = [299, 298]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
GENERATION = {
    "bos_token_id": 297,
    "do_sample": True,
    "eos_token_id": END_IDS,
    "temperature": 0.6,
    "top_p": 0.95,
}
CHAT = [{"role": "user", "content": "the tide"}]


def with_chat_tokens() -> ByteLevelTokenizer:
    """The tiny tokenizer, the last two of whose merges give way to special tokens."""
    bpe = tiny_tokenizer().bpe
    merges = bpe.merges[:-2]
    made = {left + right for left, right in bpe.merges[-2:]}
    vocab = {token: number for token, number in bpe.vocab.items() if token not in made}
    specials = {END: len(vocab), NAMES[0]: len(vocab) + 1, NAMES[1]: len(vocab) + 2}
    return ByteLevelTokenizer(
        dataclasses.replace(bpe, vocab=vocab, merges=merges, specials=specials), end_of_document=END
    )


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A chat model's folder, with all that one may have beside the weights."""
    folder = tmp_path / "chat"
    write_huggingface(dataclasses.replace(tiny_model("llama"), tokenizer=with_chat_tokens()), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("tools" + TEMPLATE)
    write_json(folder / "generation_config.json", GENERATION)
    specials = {"eos_token": NAMES[1], "pad_token": {"content": END, "lstrip": False}}
    write_json(folder / "special_tokens_map.json", {**specials, "additional_special_tokens": list(NAMES)})
    write_json(folder / "added_tokens.json", {NAMES[0]: 298, NAMES[1]: 299})
    added = {str(298 + i): {"content": name, "special": True} for i, name in enumerate(NAMES)}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "eos_token": NAMES[1],
    }
    write_json(folder / "tokenizer_config.json", {**settings, "model_max_length": 64})
    return folder


def beside(folder: Path) -> dict[str, bytes]:
    names = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    files = {path.name: path for path in folder.rglob("*") if path.is_file()}
    wanted = {name for name in files if name in names or "template" in name or "tools" in name}
    return {name: files[name].read_bytes() for name in wanted | {"generation_config.json"}}


@pytest.fixture
def groundup(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line; returns its stdout."""

    def run(*arguments: object) -> str:
        build_app()([str(argument) for argument in arguments], result_action="return_value")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "route", [["hf"], ["native", "hf"], ["megatron", "hf"], ["native", "megatron", "native", "hf"]]
)
def test_a_chat_models_files_come_along(
    route: list[str], chat: Path, tmp_path: Path, groundup: Callable[..., str]
) -> None:
    transformers = pytest.importorskip("transformers")
    source = chat
    for number, to in enumerate(route):
        groundup("convert", source, tmp_path / f"{number}-{to}", "--to", to)
        source = tmp_path / f"{number}-{to}"
        assert open_model(source, device=CPU).stop_ids == {298, 299}
    assert len(beside(chat)) == 7
    assert beside(source) == beside(chat)
    found, expected = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, chat))
    text = found.apply_chat_template(CHAT, tokenize=False)
    assert (
        text == expected.apply_chat_template(CHAT, tokenize=False) == "<|im_start|>user: the tide<|im_end|>"
    )
    assert found(text)["input_ids"] == expected(text)["input_ids"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source)
    assert theirs.generation_config.eos_token_id == END_IDS
    assert theirs.generation_config.temperature == 0.6
    assert theirs.config.eos_token_id == END_IDS
    assert theirs.config.bos_token_id == 297


def test_ids_of_a_config_stand_in_for_settings_of_generation(chat: Path, tmp_path: Path) -> None:
    (chat / "generation_config.json").unlink()
    config = json.loads((chat / "config.json").read_text())
    write_json(chat / "config.json", {**config, "eos_token_id": [3, 4], "pad_token_id": 5})
    write_huggingface(open_model(chat, device=CPU), tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (settings["eos_token_id"], settings["pad_token_id"]) == ([3, 4], 5)
    assert open_model(tmp_path / "out", device=CPU).stop_ids == {3, 4, 299}


def test_padding_outside_the_vocabulary_stays_out_of_the_config(chat: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for pad in (-1, 300):
        write_json(chat / "generation_config.json", {**GENERATION, "pad_token_id": pad})
        write_huggingface(open_model(chat, device=CPU), tmp_path / "out")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert theirs.generation_config.pad_token_id == pad
        assert "pad_token_id" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_generation_stops_at_any_of_the_ids(chat: Path, groundup: Callable[..., str]) -> None:
    command = ("generate", chat, "--prompt", "the tide", "--max-new-tokens", 12, "--temperature")
    loaded = open_model(chat, device=CPU)
    [whole] = Engine(loaded).generate(
        [loaded.tokenizer.encode("the tide")], sampling=Sampling(temperature=0), max_new_tokens=12
    )
    stop = next(number for number in whole.ids[3:] if number not in whole.ids[:3])
    write_json(chat / "generation_config.json", {**GENERATION, "eos_token_id": [298, stop]})
    shown = groundup(*command, 0)
    begin = whole.ids[: whole.ids.index(stop)]
    assert (
        shown
        == "the tide" + b"".join(map(loaded.tokenizer.token_bytes, begin)).decode(errors="replace") + "\n"
    )
    assert groundup(*command, 0.0001, "--num-samples", 2).count(shown) == 2


def test_another_tokenizers_folder_brings_its_own(
    chat: Path, tmp_path: Path, groundup: Callable[..., str]
) -> None:
    groundup("convert", chat, tmp_path / "megatron", "--to", "megatron")
    folder = tmp_path / "megatron" / "tokenizer"
    for path in (*folder.glob("*.jinja"), folder / "special_tokens_map.json", folder / "added_tokens.json"):
        path.unlink()
    assert len(beside(tmp_path / "megatron")) == 4
    out = tmp_path / "out"
    groundup("convert", tmp_path / "megatron", out, "--to", "hf", "--tokenizer", chat)
    assert beside(out) == beside(chat)
    plain = tmp_path / "plain"
    with_chat_tokens().save(plain)
    groundup("convert", chat, out, "--to", "hf", "--tokenizer", plain)
    assert beside(out).keys() == beside(chat).keys() - {"special_tokens_map.json", "added_tokens.json"}
    assert (out / "tokenizer_config.json").read_bytes() == (plain / "tokenizer_config.json").read_bytes()
    assert beside(out)["generation_config.json"] == beside(chat)["generation_config.json"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id = '2' must be an id, a list of ids"),
        ("generation_config.json", {"eos_token_id": [1, True]}, r"eos_token_id = \[1, True\] must be"),
        ("generation_config.json", {"bos_token_id": [1]}, r"bos_token_id = \[1\] must be an id or null"),
        ("generation_config.json", [1], "is not a JSON object"),
        ("config.json", {"eos_token_id": 2.5}, r"eos_token_id = 2\.5 must be"),
        (
            "added_tokens.json",
            {NAMES[0]: 297},
            "gives '<|im_start|>' the id 297, which the tokenizer does not",
        ),
        ("added_tokens.json", {"tide": 5}, "gives 'tide' the id 5"),
        ("added_tokens.json", {"tide": "x"}, "added tokens are not tokens with ids"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"299": {"content": END}}}, "the id 299"),
        ("tokenizer_config.json", {"added_tokens_decoder": ["x"]}, "added tokens are not tokens with ids"),
    ],
)
def test_what_contradicts_the_tokenizer_is_refused(name: str, content: Any, message: str, chat: Path) -> None:
    old = json.loads((chat / name).read_text()) if name == "config.json" else {}
    write_json(chat / name, {**old, **content} if isinstance(content, dict) else content)
    with pytest.raises(CheckpointError, match=f"{name}: .*{message}"):
        open_huggingface(chat)


def test_what_is_no_text_or_json_is_refused(chat: Path) -> None:
    (chat / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: is not UTF-8 text"):
        open_lazy(chat)
    (chat / "chat_template.jinja").unlink()
    (chat / "special_tokens_map.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json:1: not valid JSON"):
        open_lazy(chat)


def test_what_the_tokenizer_does_not_know_is_named(chat: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_huggingface(chat)
    assert not caplog.records
    write_json(chat / "generation_config.json", {"eos_token_id": [298, 50256]})
    write_json(chat / "special_tokens_map.json", {"pad_token": "<|pad|>", "eos_token": END})
    assert open_model(chat, device=CPU).stop_ids >= {298}
    assert "eos_token_id 50256 is outside the vocabulary of 300 ids" in caplog.text
    assert (
        "special_tokens_map.json names special tokens that the tokenizer does not have: '<|pad|>'"
        in caplog.text
    )


def test_a_damaged_one_in_a_checkpoint_is_left_out(
    chat: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(chat, folder / "tokenizer")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    listed = describe_files(folder, names)
    assert sound_companions(folder, listed) == read_companions(chat)
    (folder / "tokenizer/chat_template.jinja").write_text(TEMPLATE.replace("user", "abuser") + "x")
    (folder / "tokenizer/added_tokens.json").unlink()
    del listed["tokenizer/generation_config.json"]
    found = sound_companions(folder, listed).files
    left_out = {"chat_template.jinja", "added_tokens.json", "generation_config.json"}
    assert found.keys() == read_companions(chat).files.keys() - left_out
    assert "chat_template.jinja has" in caplog.text
    assert "added_tokens.json is missing" in caplog.text
