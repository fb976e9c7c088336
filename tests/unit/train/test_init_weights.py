"""Runs that begin with a model that is there already."""

import dataclasses
import json
import re

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy
from groundup.cli.run_config import run_config
from groundup.core.errors import CheckpointError, ConfigError
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from groundup.train.config import StartConfig
from groundup.train.init_weights import _require_tokenizer
from groundup.train.setup import build_run
from tests.megatron_files import write_checkpoint
from tests.runs import losses, make_config, make_data, run
from tests.tiny import END, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of six steps, and its folder for Hugging Face."""
    folder = tmp_path_factory.mktemp("trained")
    run(make_config(data, folder / "run", "optimizer.lr=1e-2"))
    write_huggingface(open_model(folder / "run", device="cpu"), folder / "hf")
    return folder


def started(data, run_dir, path, *overrides, state=False):
    config = make_config(data, run_dir, *overrides)
    return dataclasses.replace(config, start=StartConfig(path=path, state=state))


@pytest.mark.parametrize("name", ["hf", "run", "run/checkpoints/step_0000006"])
def test_the_first_loss_is_that_of_the_weights(data, trained, tmp_path, name):
    config = started(data, tmp_path / "run", trained / name, "ema.decay=0.9")
    first = losses(run(config))[1]
    fresh = losses(run(make_config(data, tmp_path / "fresh")))[1]
    assert first < fresh - 0.8
    again = started(data, tmp_path / "again", trained / "run")
    assert first == losses(run(again))[1]
    built = build_run(dataclasses.replace(config, run_dir=tmp_path / "built"))
    weights = dict(built.state.model.named_parameters())
    assert all(average.equal(weights[key]) for key, average in built.state.average.values.items())


def test_a_checkpoint_goes_on_as_if_it_had_never_stopped(data, tmp_path):
    options = ("num_steps=6", "checkpoint.interval=3", "checkpoint.keep_last=5", "optimizer.lr=1e-2")
    whole = losses(run(make_config(data, tmp_path / "whole", *options)))
    middle = tmp_path / "whole/checkpoints/step_0000003"
    assert losses(run(started(data, tmp_path / "fork", middle, *options, state=True))) == {
        step: whole[step] for step in (4, 5, 6)
    }


def test_what_began_goes_on_from_its_own_checkpoints(data, trained, tmp_path):
    config = started(data, tmp_path / "run", trained / "hf", "schedule_steps=9")
    whole = losses(run(dataclasses.replace(config, run_dir=tmp_path / "whole", num_steps=9)))
    run(config)
    assert losses(run(dataclasses.replace(config, num_steps=9)))[9] == whole[9]


def test_begin_tokens_of_the_prompt_stay_with_the_model(data, trained, tmp_path):
    folder = tmp_path / "with-begin"
    write_huggingface(open_model(trained / "run", device="cpu"), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    token = tokenizer.id_to_token(end)
    tokenizer.post_processor = TemplateProcessing(single=f"{token} $A", special_tokens=[(token, end)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = started(data, tmp_path / "run", folder)
    run(config)
    run(dataclasses.replace(config, num_steps=8))  # goes on
    assert open_model(config.run_dir, device="cpu").bos_ids == (end,)


def test_what_lies_beside_a_chat_model_stays_with_it(data, trained, tmp_path):
    chat = tmp_path / "chat"
    write_huggingface(open_model(trained / "run", device="cpu"), chat)
    settings = json.loads((chat / "tokenizer_config.json").read_text())
    end = json.loads((chat / "config.json").read_text())["eos_token_id"]
    for name, content in (
        ("chat_template.jinja", "{{ messages }}"),
        ("special_tokens_map.json", json.dumps({"eos_token": settings["eos_token"]})),
        ("tokenizer_config.json", json.dumps({**settings, "chat_template": "old", "padding_side": "left"})),
        ("generation_config.json", json.dumps({"eos_token_id": [end, 7], "temperature": 0.6})),
    ):
        (chat / name).write_text(content)
    names = ("chat_template.jinja", "special_tokens_map.json", "generation_config.json")
    expected = {
        name: (chat / name).read_bytes() for name in (*names, "tokenizer_config.json", "tokenizer.json")
    }
    options = ("sample.interval=3", "sample.prompt=the")
    config = started(data, tmp_path / "run", chat, *options)
    run(dataclasses.replace(config, num_steps=3))
    run(config)  # goes on
    forked = started(data, tmp_path / "forked", tmp_path / "run", "num_steps=8", state=True)
    run(forked)
    for folder in (config.run_dir, forked.run_dir):
        loaded = open_model(folder, device="cpu")
        assert loaded.stop_ids == {end, 7}
        assert {name: loaded.companions.files[name] for name in expected} == expected
        manifest = json.loads((folder / "checkpoints/latest/manifest.json").read_text())
        assert {f"tokenizer/{name}" for name in expected} <= manifest["files"].keys()
        write_huggingface(loaded, tmp_path / "out")
        assert {name: (tmp_path / "out" / name).read_bytes() for name in expected} == expected


def test_another_end_of_documents_is_told(caplog):
    bpe = tiny_tokenizer().bpe
    vocab = {token: number for token, number in bpe.vocab.items() if number < 298}
    bpe = dataclasses.replace(
        bpe, vocab=vocab, merges=bpe.merges[:42], specials={END: 298, "<|im_end|>": 299}
    )
    one, other = (ByteLevelTokenizer(bpe, end_of_document=end) for end in (END, "<|im_end|>"))
    stored = dataclasses.replace(as_lazy(tiny_model("llama")), tokenizer=other)
    _require_tokenizer(stored, other)
    assert not caplog.records
    _require_tokenizer(stored, one)
    assert "the data end with id 298, the model's tokenizer in tiny ends a text with 299" in caplog.text


def test_a_checkpoint_whose_tokenizer_reads_as_another_is_refused(trained, monkeypatch):
    checkpoint = trained / "run/checkpoints/step_0000006"
    own, other = open_model(checkpoint, device="cpu").tokenizer, tiny_model("gpt2").tokenizer
    monkeypatch.setattr("groundup.checkpoint.native.model.load_tokenizer", lambda folder: other)
    says = f"holds the tokenizer {other.fingerprint}, the model was trained with {own.fingerprint}"
    with pytest.raises(CheckpointError, match=says):
        open_model(checkpoint, device="cpu")


def test_the_model_is_taken_from_the_folder_unless_the_config_says_more(trained, tmp_path):
    hf = trained / "hf"
    words = (
        "preset=tiny",
        f"run_dir={tmp_path}",
        "data.path=x",
        "data.sequence_length=32",
        f"start.path={hf}",
    )
    resolved = run_config(None, (*words, "model.dropout=0.2"))
    stored = open_model(hf, device="cpu").config
    assert resolved.value.model == dataclasses.replace(stored, dropout=0.2)
    assert resolved.origins["model.hidden_size"] == f"the model of {hf}"


def test_what_cannot_be_begun_with_is_refused(data, trained, tmp_path):
    def refused(error, match, path, *overrides, **options):
        with pytest.raises(error, match=match):
            run(started(data, tmp_path / "refused", path, *overrides, **options))
        assert not list(tmp_path.glob("refused/checkpoints/step*"))

    refused(CheckpointError, "no such file", tmp_path / "absent")
    refused(CheckpointError, "weights only", trained / "hf", state=True)
    refused(CheckpointError, r"missing.*start\.path", trained / "hf", "model.num_layers=3")
    refused(
        CheckpointError,
        r"holds exp_avg and exp_avg_sq of .* optimizer\.kind=sgd keeps nothing",
        trained / "run",
        "optimizer.kind=sgd",
        state=True,
    )
    write_checkpoint(tiny_model("gpt2"), tmp_path / "megatron")
    refused(CheckpointError, "holds no state of an optimizer", tmp_path / "megatron", state=True)
    write_huggingface(tiny_model("gpt2"), tmp_path / "other-tokenizer")
    model = ("model.num_heads=4", "model.ffn_size=48", "model.max_sequence_length=64")
    says = r"has the tokenizer \w+, the data was built with \w+\. .* tokens build"
    refused(ConfigError, says, tmp_path / "other-tokenizer", *model)
    with pytest.raises(ConfigError, match=re.escape("start.state goes with start.path")):
        make_config(data, tmp_path / "x", "start.state=true")
