"""The commands of docs/guides/conversion.md and the conversions of examples/ run as they stand."""

import ast
import json

import pytest

from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.nanogpt import write_nanogpt
from tests.guides import ROOT, commands, require_shown, run, shell
from tests.megatron_files import edit, make_bare, rank_files, with_optimizer, write_checkpoint
from tests.tiny import NANOGPT, tiny_model, tiny_tokenizer
from tests.unit.checkpoint.test_nanogpt import save, their_model
from tests.unit.cli.test_import_nanogpt import TEXT, prepare

GUIDE = "docs/guides/conversion.md"


@pytest.fixture
def folder(tmp_path):
    """With the models that the guide takes for granted, made small."""
    checkpoints = tmp_path / "checkpoints"
    write_checkpoint(tiny_model("gpt2"), checkpoints / "gpt2", tp=2, pp=2)
    write_checkpoint(tiny_model("gpt2"), checkpoints / "codeparrot", tp=2)
    write_checkpoint(tiny_model("gpt2"), checkpoints / "gpt2-trained")
    write_checkpoint(tiny_model("stablelm"), checkpoints / "bare-ids", tp=2)
    make_bare(checkpoints / "bare-ids", vocab_size=299)
    for path in rank_files(checkpoints / "gpt2-trained"):
        edit(path, give_optimizer)
    tiny_tokenizer().save(tmp_path / "codeparrot-tokenizer")
    write_nanogpt(as_lazy(tiny_model("gpt2", **NANOGPT)), tmp_path / "out-nanogpt")
    prepare(tmp_path / "data" / "shakespeare_char")
    size = len(set(TEXT))
    save(their_model(vocab_size=size), tmp_path / "out-shakespeare-char", vocab_size=size)
    write_huggingface(tiny_model("llama"), tmp_path / "llama-hf")
    rows = (
        {"text": "The men on the quay stopped talking to watch the sea"},
        {"text": "the hull was the same"},
    )
    (tmp_path / "lambada_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def give_optimizer(content):
    content["iteration"] = 7
    with_optimizer(content, half=False, step=7)


@pytest.mark.slow
def test_every_command_runs(folder):
    pytest.importorskip("transformers")
    lines = commands(GUIDE)
    assert len(lines) == 16
    printed = {line: run(line, folder) for line in lines}
    for command, out in printed.items():
        if command.startswith("groundup convert"):
            assert "largest difference of logits 0.0e+00, top-1 agreement 100.0%" in out
        elif command.startswith("python"):
            [completion] = ast.literal_eval(out[out.index("[{") :])
            assert completion["generated_text"].startswith("def hello")
    assert len(rank_files(folder / "checkpoints" / "gpt2-merged")) == 1
    assert len(rank_files(folder / "llama-megatron")) == 4
    assert open_megatron(folder / "trained-four", moments=True).moments


@pytest.mark.slow
def test_what_is_shown_is_what_is_printed(folder):
    pytest.importorskip("transformers")
    require_shown(GUIDE, folder)


@pytest.mark.slow
def test_the_examples_run(folder):
    out = run(f"bash {ROOT}/examples/gpt2-from-megatron.sh checkpoints/gpt2 one", folder)
    assert out.count("largest difference of logits 0.0e+00") == 2
    assert "The harbour" in out
    command = f"bash {ROOT}/examples/gpt2-from-megatron.sh checkpoints/gpt2 two codeparrot-tokenizer"
    run(command, folder)
    assert open_lazy(folder / "two" / "hf").config == open_lazy(folder / "one" / "hf").config
    command = f"bash {ROOT}/examples/llama-through-megatron.sh llama-hf there 2 2 40KB"
    assert run(command, folder).count("largest difference of logits 0.0e+00") == 2
    assert len(list((folder / "there" / "hf").glob("*.safetensors"))) > 1
    assert shell(f"bash {ROOT}/examples/llama-through-megatron.sh absent other", folder).returncode == 1


def test_the_messages_that_are_explained_exist():
    """Each message's words are in the code; figures and names of one case may differ."""
    guide = (ROOT / GUIDE).read_text()
    source = "\n".join(path.read_text() for path in sorted((ROOT / "src/groundup").rglob("*.py")))
    for words in (
        "tensor-parallel ranks times", "its ranks are of different checkpoints: the", "(there is ",
        "unexpected: ",
        "expected ", "known are", "a tokenizer of", "is not supported", "does not divide",
        "is not empty and is not an earlier export", "GB and the disk has", "its pickle wants to call",
    ):  # fmt: skip
        assert words in source
        assert words in guide
