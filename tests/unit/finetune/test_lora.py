"""Adapters in runs: what is trained and saved, resume, what the commands make of it, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.formats import open_lazy, open_model
from groundup.checkpoint.lazy import LoadedModel
from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.checkpoint.native.load import TensorGroup
from groundup.checkpoint.native.model import open_native_adapter
from groundup.cli.app import build_app
from groundup.cli.train import evaluate as train_evaluate
from groundup.core.config import resolve, to_dict
from groundup.core.errors import CheckpointError, ConfigError
from groundup.finetune.config import FinetuneConfig
from groundup.finetune.lora import LoraConfig
from groundup.train.init_weights import model_of
from tests.runs import losses, make_config, make_data, run

LORA = ("lora.rank=4", "lora.dropout=0.1", "optimizer.lr=0.01")
_BASE = ("num_steps=2", "checkpoint.interval=2", "model.num_heads=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With data, a base, and a finetuning of it."""
    folder = tmp_path_factory.mktemp("lora")
    data = make_data(folder)
    run(make_config(data, folder / "base", *_BASE))
    tune(folder, "tuned", *LORA)
    return folder


def config_of(folder: Path, name: str, *overrides: str, base: str = "base") -> FinetuneConfig:
    plain = to_dict(make_config(folder / "data_text_document", folder / name))
    tree = {**plain, "model": model_of(folder / base), "start": {"path": str(folder / base)}}
    (folder / f"{name}.yaml").write_text(json.dumps(tree))
    return resolve(FinetuneConfig, file=folder / f"{name}.yaml", overrides=overrides).value


def tune(folder: Path, name: str, *overrides: str, base: str = "base") -> list[dict]:
    config = config_of(folder, name, *overrides, base=base)
    return run(config, learning=config.learning())


def logits(loaded: LoadedModel) -> torch.Tensor:
    tokens_BT = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return torch.nn.functional.linear(loaded.model(tokens_BT), loaded.model.head.weight[:300])


def test_adapters_alone_are_trained_and_saved(folder):
    checkpoint = resolve_checkpoint(folder / "tuned")
    weights, moments = TensorGroup(checkpoint, "model"), TensorGroup(checkpoint, "optimizer")
    assert len(weights) == 2 * 2 * 6
    assert all(name.endswith((".lora_a", ".lora_b")) for name in weights)
    assert {name.partition("/")[0] for name in moments} == set(weights)
    adapter = open_native_adapter(folder / "tuned")
    assert adapter is not None
    assert adapter.about.base == str(resolve_checkpoint(folder / "base"))
    assert all(float(part.b_OR.read().abs().max()) > 0 for part in adapter.parts.values())
    assert open_native_adapter(folder / "base") is None


def test_a_run_starts_as_its_base_and_opens_as_it_ended(folder, tmp_path):
    ended = []
    config = config_of(folder, "watched", "lora.rank=4", "optimizer.lr=0.01", "validation.interval=6",
                       "ema.decay=0.5")  # fmt: skip

    def evaluate(run, split, num_batches):
        ended.append(logits(LoadedModel(config=run.config.model, model=run.state.model.eval(),
                                        tokenizer=run.tokenizer, source=tmp_path)))  # fmt: skip
        return train_evaluate(run, split, num_batches)

    records = run(config, learning=config.learning(), evaluate=evaluate)
    plain = tune(folder, "plain", "num_steps=1")
    assert losses(records)[1] == losses(plain)[1]
    found = logits(open_model(folder / "watched", device="cpu"))
    average = logits(open_model(folder / "watched", device="cpu", ema=True))
    for wanted, opened in zip(ended[:2], (found, average), strict=True):
        torch.testing.assert_close(opened, wanted, atol=1e-5, rtol=1e-5)
    assert (found - logits(open_model(folder / "base", device="cpu"))).abs().max() > 1e-3


def test_resuming_is_exact(folder, tmp_path):
    again = folder / "again"
    shutil.copytree(folder / "tuned", again, symlinks=True)
    shutil.rmtree(again / "checkpoints" / "step_0000006")
    tune(folder, "again", *LORA)
    for file in ("model.safetensors", "optimizer.safetensors", "random.safetensors"):
        first, second = (folder / name / "checkpoints/step_0000006" / file for name in ("tuned", "again"))
        assert first.read_bytes() == second.read_bytes()


def test_a_base_with_other_weights_is_refused(folder):
    run(make_config(folder / "data_text_document", folder / "other", *_BASE, "seed=5"))
    shutil.copytree(folder / "tuned", folder / "elsewhere", symlinks=True)
    with pytest.raises(
        CheckpointError, match=r"holds an adapter of .*/base/.*, and start.path leads to .*/other/"
    ):
        tune(folder, "elsewhere", *LORA, "num_steps=8", base="other")
    with pytest.raises(
        CheckpointError, match=r"holds another run: lora.dropout was 0.1 and is 0.0, lora.rank was 4"
    ):
        tune(folder, "elsewhere", "lora.rank=2")
    (folder / "other").rename(folder / "moved")
    tuned = config_of(folder, "of-moved", *LORA, "num_steps=1", base="moved")
    run(tuned, learning=tuned.learning())
    (folder / "moved").rename(folder / "gone")
    with pytest.raises(CheckpointError, match=r"holds an adapter of .*/moved/.*, which is not here"):
        open_lazy(folder / "of-moved")


def test_the_commands_write_merge_and_use_an_adapter(folder, tmp_path, capsys):
    def groundup(*words: object) -> str:
        build_app()([str(word) for word in words], result_action="return_value")
        return capsys.readouterr().out

    hf, adapter = tmp_path / "base", tmp_path / "adapter"
    groundup("convert", folder / "base", hf, "--to", "hf")
    assert "an adapter of" in groundup("convert", folder / "tuned", adapter, "--to", "hf", "--adapter-only")
    wanted = logits(open_model(folder / "tuned", device="cpu"))
    groundup("convert", folder / "tuned", tmp_path / "merged", "--to", "hf")
    groundup("convert", hf, tmp_path / "merged-too", "--to", "native", "--merge-adapter", adapter)
    for path in (adapter, tmp_path / "merged", tmp_path / "merged-too"):
        torch.testing.assert_close(logits(open_model(path, device="cpu")), wanted, atol=1e-5, rtol=1e-5)
    prompt = ("--prompt", "the cat", "--temperature", "0", "--max-new-tokens", "8")
    texts = [groundup("generate", *words, *prompt)
             for words in ((folder / "tuned",), (adapter,), (hf, "--adapter", adapter))]  # fmt: skip
    assert len(set(texts)) == 1
    for path, problem in ((hf, "holds a whole model"), (adapter, "is such an adapter already")):
        with pytest.raises(ConfigError, match=problem):
            groundup("convert", path, tmp_path / "none", "--to", "hf", "--adapter-only")
    with pytest.raises(ConfigError, match="goes with --to hf"):
        groundup("convert", folder / "tuned", tmp_path / "none", "--to", "native", "--adapter-only")
    with pytest.raises(CheckpointError, match=r"holds an adapter, not a model.*Merge it into its base"):
        model_of(adapter)


def test_conversations_are_learned_by_an_adapter_that_keeps_their_template(folder, tmp_path, capsys):
    turns = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "sat"}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 40)
    words = [
        "finetune",
        folder / "base",
        "--data",
        tmp_path / "chats.jsonl",
        "lora.rank=4",
        "optimizer.lr=0.03",
    ]
    words += [f"run_dir={tmp_path / 'run'}", "num_steps=12", "stage.template=text", "device=cpu"]
    build_app()([str(word) for word in words], result_action="return_value")
    for path in (tmp_path / "run", tmp_path / "run" / "adapter"):
        assert "### Assistant" in (open_lazy(path).companions.chat_template or "")
    assert open_native_adapter(tmp_path / "run") is not None
    card = (tmp_path / "run" / "adapter" / "README.md").read_text()
    assert "library_name: peft" in card and "# run" in card and str(tmp_path) not in card
    found = [
        logits(open_model(path, device="cpu")) for path in (tmp_path / "run", tmp_path / "run" / "adapter")
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("lora.targets=q_proj",),
            "lora.targets: 'q_proj' is no linear layer of a gpt2. Choose of all, attention",
        ),
        (
            ("lora.dropout=0.1", "layout.tp=2"),
            "lora.dropout: the ranks of tensor parallelism would each drop",
        ),
        (("precision=fp8",), "precision fp8: the layers that have adapters multiply in 16 bits"),
        (("start.state=true",), "lora.rank: an adapter is trained on the weights of a model, as they are"),
        (
            ("stage.kind=sft", "stage.template=chatml", "data.packing=best_fit", "data.mask_documents=true"),
            "lora.rank: the chat template adds 2 tokens, whose rows would stay as they begin, all alike",
        ),
    ],
)
def test_what_adapters_cannot_be_trained_with_is_refused(folder, overrides, problem):
    config = config_of(folder, "refused", "lora.rank=4", *overrides)
    with pytest.raises(ConfigError) as error:
        config.learning()
    assert str(error.value).startswith(problem)
    assert LoraConfig().rank == 0
