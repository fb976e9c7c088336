"""Cards say what the records of a model's making say, and nothing of the machine that it was made on."""

import contextlib
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from groundup.checkpoint.formats import open_lazy
from groundup.cli.app import build_app
from groundup.cli.corpus import build as build_corpus
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.files import read_json, write_json
from groundup.report.card_text import hub_id, is_hub_id, place, without_places
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.chats import write_talks
from tests.runs import make_config, make_data, run


def groundup(words):
    build_app()(words, result_action="return_value")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, a run on it, one on conversations that began with that, and adapters that began with this."""
    folder = tmp_path_factory.mktemp("secretive")
    make_data(folder)
    with contextlib.chdir(folder):
        build_corpus(Path("documents.jsonl"), out=Path("corpus"), min_characters=900, workers=0)
        tokenizer = load_tokenizer(folder / "data_tokenizer")
        build_tokens(
            [folder / "corpus" / "documents-00000-of-00001.jsonl.zst"], folder / "kept", tokenizer, workers=0
        )
        run(
            make_config(
                folder / "kept_text_document", folder / "base", "num_steps=4", "validation.interval=2"
            )
        )
        write_talks(folder / "talks.jsonl")
        words = ["device=cpu", "precision=fp32", "log.interval=1", "validation.interval=0", "num_steps=2"]
        words += ["data.sequence_length=32"]
        groundup(
            ["finetune", "base", "--data", "talks.jsonl", "run_dir=chat", "stage.template=plain", *words]
        )
        groundup(["finetune", "chat", "--data", "talks.jsonl", "run_dir=lora", "lora.rank=2", *words])
    return folder


@pytest.fixture
def card(folder, tmp_path):
    """Converts a model; returns the metadata and the sections of its card, and all of its text."""

    def card(model, *words, out=None):
        out = out or tmp_path / "out"
        with contextlib.chdir(folder):
            groundup(["convert", str(model), str(out), "--to", "hf", *words])
        text = (out / "README.md").read_text()
        assert str(folder) not in text and f"{Path.home()}/" not in text
        parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
        return ModelCard(text).data, dict(zip(parts[1::2], parts[2::2], strict=True)), text

    return card


def test_a_finetuned_model_tells_all_its_stages(folder, card):
    data, sections, text = card("chat", "--license", "apache-2.0", "--language", "en", "--name", "me/small")
    assert (data.license, data.language, data.library_name) == ("apache-2.0", ["en"], "transformers")
    assert (data.pipeline_tag, data.base_model) == ("text-generation", None)
    assert data.tags == ["groundup", "gpt2", "sft", "conversational"]
    manifest = read_json(folder / "corpus" / "manifest.json")["counts"]
    assert f"{manifest['documents']:,} of 60 documents kept" in sections["Data"]
    assert (
        "| exact_duplicate: seen before | 33 |" in sections["Data"] and "documents.jsonl" in sections["Data"]
    )
    assert read_json(folder / "kept_text_document.json")["fingerprint"] in sections["Data"]
    assert hashlib.sha256((folder / "talks.jsonl").read_bytes()).hexdigest() in sections["Data"]
    assert "evaluation items were not looked for" in sections["Data"]
    assert "conversations of" in sections["Data"]  # what the run said of them
    first, second = sections["Training"].split("### 2. Supervised fine-tuning (SFT)")
    assert "### 1. Pretraining" in first and "| began with | random weights |" in first
    assert "| began with | the weights of base |" in second and "stage.template=plain" in second
    for part, name in ((first, "base"), (second, "chat")):
        last = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        train = [record for record in last if record["kind"] == "train"][-1]
        assert f"| training loss | {train['loss']:.4f}, the last |" in part
        assert f"| tokens | {train['tokens']:,}, " in part
        assert "| precision | fp32 |" in part and "| machine | CPU (" in part
    assert "apply_chat_template" in sections["How to use it"] and '"me/small"' in sections["How to use it"]
    assert "--license apache-2.0 --language en --name me/small" in sections["How this was written"]
    assert "No evaluation of this checkpoint" in sections["Evaluation"] and "model-index" not in text
    assert "at most 32 tokens" in sections["Limits"] and "Personal data were not masked" in sections["Limits"]


def test_scores_of_the_checkpoint_are_in_the_metadata_and_others_are_not(folder, card):
    for step, value in ((4, 0.25), (3, 0.75)):
        tree = {
            "task": "lambada",
            "options": {"limit": 8},
            "data": ["/home/me/lambada.jsonl"],
        }
        tree |= {"figures": {"accuracy": value}, "standard_errors": {"accuracy": 0.1}, "skipped": {}}
        model = f"base/checkpoints/step_{step:07}"
        write_json(
            folder / "base" / f"scores-{step}.json", {"kind": "evaluation", "model": model, "tasks": [tree]}
        )
    data, sections, text = card("base")
    [found] = data.eval_results
    assert (found.metric_type, found.metric_value, found.dataset_type) == ("accuracy", 0.25, "lambada")
    assert found.metric_args["limit"] == 8 and "0.75" not in text
    assert (
        "| accuracy (strict) | 0.25 | 0.1 |" in sections["Evaluation"] and "limit=8" in sections["Evaluation"]
    )
    assert "/home/me" not in text


def test_adapters_alone_and_merged_name_their_base(folder, card, tmp_path):
    data, sections, _ = card("lora", "--adapter-only", "--base-model", "me/base", out=tmp_path / "adapter")
    assert (data.library_name, data.base_model, data.base_model_relation) == ("peft", "me/base", "adapter")
    assert read_json(tmp_path / "adapter/adapter_config.json")["base_model_name_or_path"] == "me/base"
    assert "### 3. Supervised fine-tuning (SFT) of adapters (LoRA)" in sections["Training"]
    assert 'PeftModel.from_pretrained(base, "adapter")' in sections["How to use it"]
    data, sections, _ = card("lora", out=tmp_path / "merged")
    assert (data.library_name, data.base_model) == ("transformers", None)
    assert "| adapters | rank 2, alpha 16.0, on all linear layers" in sections["Training"]
    merged = ["chat", "--merge-adapter", "lora/adapter"]
    _, again, _ = card(*merged, out=tmp_path / "again")
    assert again["Training"] == sections["Training"]


def test_a_model_without_a_run_says_that_nothing_is_known(folder, card, tmp_path):
    card("base", out=tmp_path / "first")
    (tmp_path / "first" / "groundup_export.json").unlink()
    data, sections, _ = card(tmp_path / "first")
    assert data.tags == ["groundup", "gpt2"] and data.language is None
    assert sections["Data"].startswith("\nNot known") and sections["Training"].startswith("\nNot known")
    assert "groundup convert first out --to hf" in sections["How this was written"]
    cached = tmp_path / "models--them--theirs" / "snapshots" / "0123"
    shutil.copytree(tmp_path / "first", cached)
    words = [
        "device=cpu",
        "log.interval=1",
        "validation.interval=0",
        "num_steps=1",
        "data.sequence_length=32",
    ]
    with contextlib.chdir(folder):
        groundup(["finetune", str(cached), "--data", "talks.jsonl", f"run_dir={tmp_path / 'run'}", *words])
    data, sections, _ = card(tmp_path / "run", out=tmp_path / "second")
    assert (data.base_model, data.base_model_relation) == ("them/theirs", "finetune")
    assert "How `them/theirs` was trained is not known here." in sections["Training"]
    assert "| began with | the weights of them/theirs |" in sections["Training"]


def test_a_card_that_somebody_wrote_is_not_overwritten(card, tmp_path):
    out = tmp_path / "out"
    card("base")
    _, _, before = card("base")  # its own is replaced
    (out / "README.md").write_text("mine")
    with pytest.raises(CheckpointError, match="written or changed by somebody"):
        card("base")
    assert (out / "README.md").read_text() == "mine"
    (out / "README.md").unlink()
    assert card("base")[2] == before
    open_lazy(out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--license", "Apache 2"], "--license: 'Apache 2' is not a short name"),
        (["--language", "English"], "--language: 'English' is not an ISO"),
        (["--base-model", "./here"], "--base-model: './here' is no name on the hub"),
        (["--datasets", "a/b,c"], "--datasets: 'c' is no name on the hub"),
    ],
)
def test_what_the_hub_would_refuse_is_refused(folder, tmp_path, words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        groundup(["convert", str(folder / "base"), str(tmp_path / "out"), "--to", "hf", *words])
    with pytest.raises(ConfigError, match=f"{words[0]} is for the card that goes with --to hf"):
        groundup(["convert", str(folder / "base"), str(tmp_path / "out"), "--to", "megatron", *words])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("runs/a", "runs/a"),
        ("../data/a.jsonl", "data/a.jsonl"),
        ("/home/me/data/a.jsonl", "a.jsonl"),
        ("~/data/a.jsonl", "a.jsonl"),
        ("/home/me/run/checkpoints/step_0000004", "run/checkpoints/step_0000004"),
        ("s3://me:secret@bucket/a", "s3://bucket/a"),
    ],
)
def test_places_are_told_without_what_is_only_of_a_machine(given, told):
    assert place(given) == told
    if given.startswith(("/", "~")):
        assert (
            without_places(f"read '{given}', 3 tokens/s and/or more")
            == f"read '{told}', 3 tokens/s and/or more"
        )


def test_names_on_the_hub():
    assert (
        is_hub_id("me/a-b.c_1") and not is_hub_id("a") and not is_hub_id("a/b/c") and not is_hub_id("a/b--c")
    )
    assert hub_id("/x/models--me--gpt2/snapshots/0abc") == "me/gpt2" and hub_id("runs/a") is None
