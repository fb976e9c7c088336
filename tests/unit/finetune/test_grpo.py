"""GRPO in the loop: what is drawn, what is learned, what is written, resuming and refusing."""

import dataclasses
import re

import orjson
import pytest
import torch

from groundup.checkpoint.companions import Companions
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.finetune.policy_loss import group_advantages, policy_loss
from groundup.finetune.prompts import prompt_encoder, read_prompts
from groundup.finetune.record_data import BY_EPOCHS
from groundup.finetune.rollouts import seed_of
from groundup.finetune.templates import with_template
from groundup.train.init_weights import open_start
from tests.grpo import grpo_config, make_prompts, run_grpo, samples_of
from tests.runs import losses
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_prompts(tmp_path_factory.mktemp("grpo"))


def test_samples_and_metrics_tell_the_same(folder, tmp_path):
    config = grpo_config(folder, tmp_path / "run", "num_steps=2")
    records = run_grpo(config)
    samples = samples_of(config)
    assert [one["sample"] for one in samples] == list(range(16))
    for step, record in enumerate(records, start=1):
        mine = [one for one in samples if one["step"] == step]
        for name, key in {"reward": "reward", "completion_length": "tokens"}.items():
            assert record[name] == pytest.approx(sum(one[key] for one in mine) / 8, rel=1e-6)
        assert record["truncated"] == sum(one["finished"] != "stop" for one in mine) / 8
        assert record["tokens"] == sum(one["tokens"] for one in samples if one["step"] <= step)
        for group in (mine[:4], mine[4:]):
            assert len({one["where"] for one in group}) == 1
            assert len({one["completion"] for one in group}) == 4
            rewards = torch.tensor([one["reward"] for one in group], dtype=torch.float64)
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            assert [one["advantage"] for one in group] == pytest.approx(expected.tolist(), abs=1e-5)
    for one in samples:
        letter = "ea"[int(one["where"].rpartition(":")[2]) % 2 == 0]
        assert one["reward"] == one["completion"].count(letter) / max(1, len(one["completion"]))
        assert one["rewards"] == {f"{folder / 'rewards.py'}:letters": one["reward"]}
    first_epoch = {one["where"] for one in samples}
    assert len(first_epoch) == 4, "each group has another prompt"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("stage.updates=2", "stage.beta=0.1"),
        ("stage.updates=2", "stage.beta=0.1", "lora.rank=2", "optimizer.lr=0.01"),
    ],
    ids=["one update", "amid two updates, with a reference", "of an adapter"],
)
def test_kill_and_resume_is_bit_identical(folder, tmp_path, overrides):
    whole = grpo_config(folder, tmp_path / "whole", *overrides)
    records = run_grpo(whole)
    cut = grpo_config(folder, tmp_path / "cut", *overrides, "checkpoint.keep_last=1")

    def kill_after_step_five(run):  # after the checkpoint of step 3, and one more rollout
        if run.state.step == 5:
            raise KeyboardInterrupt
        return [""]

    with pytest.raises(KeyboardInterrupt):
        run_grpo(
            dataclasses.replace(cut, sample=dataclasses.replace(cut.sample, interval=1)),
            complete=kill_after_step_five,
        )
    resumed = run_grpo(cut)
    assert losses(resumed) == losses(records)
    for figure in ("reward", "kl", "clip_fraction", "grad_norm"):
        assert [one[figure] for one in resumed] == [one[figure] for one in records]
    assert samples_of(cut) == samples_of(whole)
    if overrides:
        assert records[0]["clip_fraction"] == 0 < records[1]["clip_fraction"]
        assert records[0]["kl"] == pytest.approx(0, abs=1e-6)
        assert records[5]["kl"] > records[2]["kl"] > 1e-5


def test_lost_completions_are_named(folder, tmp_path):
    config = grpo_config(folder, tmp_path / "run", "stage.updates=2", "num_steps=3")
    run_grpo(config)
    files = sorted((config.run_dir / "rollouts").iterdir())
    assert [file.stem for file in files] == ["0000000", "0000001"]
    files[1].unlink()
    with pytest.raises(CheckpointError, match=r"0000001\.safetensors.*stage.updates 2"):
        run_grpo(dataclasses.replace(config, num_steps=4))


def test_every_micro_batch_size_is_the_same_step(folder, tmp_path):
    curves = []
    for normalisation in ("grpo", "dapo"):
        for size in (8, 2):
            name = f"{normalisation}{size}"
            settings = (f"micro_batch_size={size}", f"stage.normalisation={normalisation}", "stage.beta=0.1")
            config = grpo_config(folder, tmp_path / name, *settings, "stage.updates=2", "num_steps=2")
            curves.append(run_grpo(config))
    for one, other in (curves[:2], curves[2:]):
        for key in ("loss", "grad_norm", "kl", "clip_fraction"):
            assert [r[key] for r in one] == pytest.approx([r[key] for r in other], rel=1e-4, abs=1e-7), key


def test_a_bad_reward_ends_the_run_or_is_counted(folder, tmp_path):
    (tmp_path / "bad.py").write_text(
        "def bad(prompt, completion, record):\n    return len(completion) / (record['answer'] % 2)\n"
    )
    settings = (f"stage.reward={tmp_path / 'bad.py'}:bad", "num_steps=4")
    with pytest.raises(DataError, match=r"raised ZeroDivisionError.*record at .*prompts\.jsonl:\d"):
        run_grpo(grpo_config(folder, tmp_path / "a", *settings))
    config = grpo_config(folder, tmp_path / "b", *settings, "stage.bad_rewards=skip")
    records = run_grpo(config)
    assert sum(one["bad_rewards"] for one in records) / 4 == 0.5  # an epoch: half of the prompts
    bad = [one for one in samples_of(config) if one["reward"] is None]
    assert len(bad) == 16
    assert {one["advantage"] for one in bad} == {0.0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stage.group_size=3"], "global_batch_size: 8 are no whole groups"),
        (["stage.max_new_tokens=32"], "leaves no room for a prompt"),
        (["layout.tp=2"], "layout: completions are drawn by a rank that has the whole model"),
        (["validation.interval=1"], "validation.interval"),
        (["stage.reward=nowhere.py:f"], "no file nowhere.py"),
        (["stage.sampling.temperature=0"], "temperature 0 would draw"),
        (["stage.reward=[exact, number]", "stage.reward_weights=[1]"], "reward_weights has 1"),
        (["stage.reward=[]"], "reward is missing"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(folder, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        grpo_config(folder, tmp_path / "run", *overrides).learning()


def test_prompts_that_cannot_be_are_counted(folder, tmp_path, caplog):
    lines = ['{"prompt": "a"}', '{"prompt": 3}', "no", '{"text": "b"}', '{"prompt": "%s"}' % ("z" * 99)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    config = grpo_config(folder, tmp_path / "run", f"data.path={tmp_path / 'p.jsonl'}")
    data = config.learning().open_data(config)
    assert [prompt.where for prompt in data.train.prompts] == [f"{tmp_path / 'p.jsonl'}:1"]
    for reason in ("neither text nor messages", "not JSON", "no prompt", "over 24 tokens"):
        assert re.search(rf"1 records left out: .*{reason}: .*p\.jsonl:\d", caplog.text)
    (tmp_path / "p.jsonl").write_text('{"text": "b"}')
    with pytest.raises(DataError, match="holds no prompt"):
        config.learning().open_data(config)


def test_advantages_of_groups() -> None:
    rewards = torch.tensor([1.0, 0, 0, 0, 5, 5, 5, 5, 2, float("nan"), 0, 1])
    for scale in ("group", "batch", "none"):
        found = group_advantages(rewards, 4, scale).view(3, 4)
        assert found.sum(1).abs().max() < 1e-6
        assert found[1].tolist() == [0, 0, 0, 0]
        assert found[2, 1] == 0
    assert found[0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert group_advantages(rewards, 4, "group")[0] == pytest.approx(0.75 / 0.5, rel=1e-3)
    spread = rewards[~rewards.isnan()].std()
    assert group_advantages(rewards, 4, "batch")[0] == pytest.approx(float(0.75 / spread), rel=1e-3)


def test_a_ratio_beyond_the_clip_has_no_gradient_where_it_would_go_on() -> None:
    old = torch.zeros(4)
    log_probs = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1, 1, -1])
    found = policy_loss(
        log_probs, old_M=old, reference_M=None, advantages_M=advantages, weights_M=torch.ones(4),
        clip_low=0.2, clip_high=0.2, beta=0.0, weighted_kl=True,
    )  # fmt: skip
    found.loss.backward()
    assert (log_probs.grad == 0).tolist() == [True, False, False, True]
    assert float(found.clipped) == 2


def test_seeds_are_of_the_sample_alone() -> None:
    seeds = {seed_of(seed, sample) for seed in range(8) for sample in range(64)}
    assert len(seeds) == 512
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_model_with_a_template_is_asked(folder, tmp_path, caplog):
    tuned = with_template(open_start(folder / "model"), "plain")
    lines = [
        {"prompt": "say a"},
        {"prompt": [{"role": "user", "content": "say a"}]},
        {"messages": [{"role": "system", "content": "briefly"}, {"role": "user", "content": "say a"}]},
        {"messages": [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "a"}]},
    ]
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))

    def prompts(form, companions=tuned.companions, tokenizer=tuned.tokenizer):
        encode = prompt_encoder(tokenizer, companions, (), form)
        found, _ = read_prompts(tmp_path / "p.jsonl", encode, most_tokens=64)
        return [prompt.ids for prompt in found]

    text, message, both = prompts("auto")
    assert text == message == prompts("chat")[0]
    assert tuned.tokenizer.decode(text) == "<|user|>say a<|assistant|>"
    assert tuned.tokenizer.decode(both).endswith("<|user|>say a<|assistant|>")
    assert "briefly" in tuned.tokenizer.decode(both)
    assert "the last message is the assistant's" in caplog.text
    assert prompts("text")[0] == tuned.tokenizer.encode("say a")
    base = tiny_tokenizer()
    assert prompts("auto", Companions(), base) == [base.encode("say a")]
    assert "3 records left out: messages, and the model has no chat template" in caplog.text
    with pytest.raises(ConfigError, match="no chat template"):
        prompts("chat", Companions(), base)


def test_the_steps_of_an_epoch(folder, tmp_path):
    config = grpo_config(folder, tmp_path / "run", f"num_steps={BY_EPOCHS}", "stage.epochs=1.5")
    assert config.completed().num_steps == 6  # 8 prompts of 4 completions, 8 a step


def test_an_adapter_learns_and_its_base_is_the_reference(folder, tmp_path):
    settings = ("stage.updates=2", "stage.beta=0.1", "lora.rank=4", "optimizer.lr=3e-2", "num_steps=4")
    records = run_grpo(grpo_config(folder, tmp_path / "run", *settings))
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert min(records[1]["kl"], records[3]["kl"]) > 1e-5
    assert len({record["reward"] for record in records}) > 1
    # Its first step draws, and weighs, what a run of all weights does.
    everything = run_grpo(grpo_config(folder, tmp_path / "all", *settings[:2], "num_steps=1"))
    for key in ("loss", "reward", "completion_length"):
        assert everything[0][key] == pytest.approx(records[0][key], abs=1e-6)
