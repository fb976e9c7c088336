"""Fine-tuning on conversations: samples, runs, what is left out and said, and the model that comes out."""

import dataclasses
import gzip
import json
import re

import pytest
import torch

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.native.load import TensorGroup
from groundup.cli.app import run as groundup
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.inference.chat_template import read_chat_template
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.train.loss import IGNORE
from groundup.train.setup import build_run
from tests.chats import TALKS, finetuning, messages, write_base, write_chats, write_talks
from tests.runs import losses, run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "hf")


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    return write_talks(tmp_path_factory.mktemp("chats") / "chats.jsonl")


def test_each_conversation_is_alone_in_its_sample_and_its_answers_are_learned(base, chats, tmp_path):
    config = finetuning(base, chats, tmp_path / "run")
    built = build_run(config, learning=config.learning())
    split, tokenizer = built.data.train, built.tokenizer
    batch = split.read(0, split.num_samples, ordered=True)
    assert split.num_samples < len(TALKS)
    found = []
    for row in range(len(batch.tokens_BT)):
        documents = batch.documents_BT[row]
        for document in documents.unique():
            here = documents == document
            assert batch.positions_BT[row][here].tolist() == list(range(int(here.sum())))
            ids, targets = batch.tokens_BT[row][here], batch.targets_BT[row][here]
            kept = targets != IGNORE
            if kept.any():  # else padding
                assert targets[:-1][kept[:-1]].tolist() == ids[1:][kept[:-1]].tolist()
                found.append(tokenizer.decode(targets[kept].tolist()))
    answers = (
        "".join(f"{content}<|endoftext|>" for role, content in talk if role == "assistant") for talk in TALKS
    )
    assert sorted(found) == sorted(answers)


def test_a_run_resumes_bit_by_bit_and_carries_its_template(base, chats, tmp_path):
    options = (
        "num_steps=6",
        "checkpoint.interval=3",
        "optimizer.lr=1e-3",
        "sample.interval=3",
        "sample.prompts=[a, say b]",
    )
    whole = finetuning(base, chats, tmp_path / "whole", *options)
    records = run(whole)
    stopped = finetuning(base, chats, tmp_path / "stopped", *options, "schedule_steps=6")
    run(dataclasses.replace(stopped, num_steps=3))
    assert losses(run(stopped)) == losses(records)
    last = [TensorGroup(one.run_dir / "checkpoints/step_0000006", "model") for one in (whole, stopped)]
    assert all(torch.equal(last[0].read(name), last[1].read(name)) for name in last[0])
    loaded = open_model(stopped.run_dir, device="cpu")
    template = read_chat_template(loaded.companions, loaded.tokenizer.special_tokens)
    user, assistant = (loaded.tokenizer.special_tokens[f"<|{role}|>"] for role in ("user", "assistant"))
    assert template.render(messages([("user", "a")])) == [user, "a", assistant]
    prompts = ("a", "say b")
    samples = [record for record in records if record["kind"] == "sample"]
    assert [(one["step"], one["prompt"]) for one in samples] == [
        (n, text) for n in (3, 6) for text in prompts
    ]
    asked = [[user, *loaded.tokenizer.encode(text), assistant] for text in prompts]
    answers = Engine(loaded).generate(
        asked, sampling=Sampling(temperature=0.8), max_new_tokens=64, stop_ids=loaded.stop_ids
    )
    expected = [f"{text} -> {answer.text}" for text, answer in zip(prompts, answers, strict=True)]
    assert [one["text"] for one in samples[2:]] == expected


def test_a_run_folder_of_other_chats_or_another_template_is_refused(base, chats, tmp_path):
    config = finetuning(base, chats, tmp_path / "run", "num_steps=1")
    run(config)
    other = write_chats(tmp_path / "other.jsonl", [{"prompt": "a", "completion": "b"}])
    with pytest.raises(CheckpointError, match="trained on other data"):
        run(finetuning(base, other, tmp_path / "run", "num_steps=2"))
    with pytest.raises(CheckpointError, match=r"stage\.template was  and is chatml"):
        run(finetuning(base, chats, tmp_path / "run", "num_steps=2", "stage.template=chatml"))


LEFT_OUT = [
    {"messages": messages([("user", "a")])},
    "{broken",
    {"messages": messages([("user", "a"), ("assistant", "b" * 99)])},
    {"messages": messages([("tool", "a"), ("assistant", "b")])},
]


def test_the_command_shows_examples_counts_what_is_left_out_and_counts_steps(base, tmp_path, capsys, caplog):
    path = write_chats(tmp_path / "a.jsonl", [*({"messages": messages(talk)} for talk in TALKS), *LEFT_OUT])
    packed = tmp_path / "chats.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    words = ["data.split=2,1,0", "device=cpu", "stage.epochs=2", f"run_dir={tmp_path / 'run'}"]
    with caplog.at_level("INFO"), pytest.raises(SystemExit) as ended:
        groundup(["finetune", str(base), "--data", str(packed), *words])
    assert ended.value.code == 0
    log = caplog.text
    for line, reason in (
        (7, "no assistant turn"),
        (8, "not JSON"),
        (9, "too long (103 tokens; at most 65 fit)"),
        (10, "refused by the template (the chat template refuses them (there is no role tool)"),
    ):
        assert f"{packed}:{line}: left out: {reason}" in log
    assert "4 left out: 1 no assistant turn, 1 not JSON, 1 too long, 1 refused by the template" in log
    shown = re.findall(r"an example, of which \[\[ \]\] is learned \(.*:(\d+)\):\n(.*)", log)
    assert len(shown) == 3
    for line, text in shown:
        expected = "".join(
            f"<|assistant|>[[{content}<|endoftext|>]]" if role == "assistant" else f"<|{role}|>{content}"
            for role, content in TALKS[int(line) - 1]
        )
        assert text == expected
    left_out = next((tmp_path / "run/conversations").glob("*/left-out.jsonl")).read_text().splitlines()
    assert [json.loads(line)["reason"] for line in left_out][:2] == ["no assistant turn", "not JSON"]
    out = capsys.readouterr().out
    assert "validation: loss" in out
    assert f"Next: groundup serve {tmp_path / 'run'}" in out


def test_steps_follow_from_epochs(base, chats, tmp_path):
    config = finetuning(base, chats, tmp_path / "run", "stage.epochs=5", "global_batch_size=3")
    samples = build_run(config, learning=config.learning()).data.train.num_samples
    assert config.num_steps == -(-5 * samples // 3)
    assert config.warmup.kind == "fraction"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.packing=stream", "conversations are packed whole and kept apart"),
        ("start.state=true", "start.state goes on with another run"),
        ("data.order=megatron", "is of documents that are not packed"),
        ("stage.kind=sfd", "Did you mean 'sft'"),
        ("stage.answers=some", "'all' or 'last'"),
    ],
)
def test_settings_that_do_not_fit(base, chats, tmp_path, override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        finetuning(base, chats, tmp_path / "run", override)


def test_data_without_a_conversation(base, tmp_path):
    empty = write_chats(tmp_path / "empty.jsonl", [{"text": "a"}, {"text": "b"}])
    with pytest.raises(DataError, match="no conversations to learn from: 2 unknown form"):
        finetuning(base, empty, tmp_path / "run")
    one = write_chats(tmp_path / "one.jsonl", [{"prompt": "a", "completion": "b"}])
    with pytest.raises(DataError, match="leaves none of 1 conversations for training"):
        finetuning(base, one, tmp_path / "run", "data.split=0,1,0")


def test_validation_of_files_of_its_own(base, chats, tmp_path):
    held_out = write_chats(tmp_path / "held_out.jsonl", [{"prompt": "a", "completion": "b c"}])
    options = (f"data.validation.own.path={held_out}", "validation.interval=5", "num_steps=1")
    config = finetuning(base, chats, tmp_path / "run", *options)
    found = [record for record in run(config) if record["kind"] == "validation"]
    assert [record["num_tokens"] for record in found] == [3]  # b, c and the end
