"""``groundup convert`` between all formats, as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.formats import open_lazy, open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.native.model import write_native
from groundup.checkpoint.parity import compare
from groundup.checkpoint.safetensors import bytes_of
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, MachineError
from tests.megatron_files import edit, rank_files, with_optimizer, write_checkpoint
from tests.tiny import tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def groundup(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line; returns its stdout."""

    def run(*arguments: object) -> str:
        build_app()([str(argument) for argument in arguments], result_action="return_value")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["gpt2-erf-untied-biasless", "llama-grouped-tied"])
def test_the_tour_of_all_formats(name: str, groundup: Callable[..., str], tmp_path: Path) -> None:
    ours = tiny_model(name)
    write_huggingface(ours, tmp_path / "hf")
    for source, target, *settings in (
        ("hf", "native", "--to", "native"),
        ("native", "four", "--to", "megatron", "--tp", 2, "--pp", 2),
        ("four", "merged", "--to", "megatron", "--tp", 1, "--pp", 1, "--names", "core"),
        ("merged", "back", "--to", "hf", "--shards", 2),
    ):
        out = groundup("convert", tmp_path / source, tmp_path / target, *settings)
        assert f"wrote {tmp_path / target}" in out
        assert "largest difference of logits 0.0e+00, top-1 agreement 100.0%" in out
        assert compare(ours, open_model(tmp_path / target, device=CPU)).max_difference < 1e-5
    assert len(rank_files(tmp_path / "four")) == 4
    assert len(rank_files(tmp_path / "merged")) == 1
    out = groundup("convert", tmp_path / "four", tmp_path / "half", "--to", "native", "--dtype", "bfloat16")
    assert "bfloat16, from" in out
    assert "rounding to bfloat16: largest difference of logits" in out
    assert {t.dtype for t in open_lazy(tmp_path / "half").weights.values()} == {torch.bfloat16}


def test_generate_and_eval_take_megatrons_checkpoints(groundup: Callable[..., str], tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_checkpoint(ours, tmp_path / "megatron", tp=2)
    write_huggingface(ours, tmp_path / "hf")
    command = ("--prompt", "the sea", "--max-new-tokens", 8, "--seed", 1)
    expected = groundup("generate", tmp_path / "hf", *command)
    assert groundup("generate", tmp_path / "megatron", *command) == expected


def test_moments_are_kept_or_left_out(groundup: Callable[..., str], tmp_path: Path) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "megatron")
    [path] = rank_files(tmp_path / "megatron")
    edit(path, lambda content: with_optimizer(content, half=False, step=7))
    out = groundup("convert", tmp_path / "megatron", tmp_path / "with", "--to", "native")
    assert "with the optimizer's moments" in out
    assert len(open_lazy(tmp_path / "with").moments) == 3 * len(open_lazy(tmp_path / "with").weights)
    out = groundup("convert", tmp_path / "megatron", tmp_path / "without", "--to", "native", "--no-moments")
    assert "the optimizer's moments" not in out
    assert not open_lazy(tmp_path / "without").moments


def test_a_tokenizer_and_a_vocabulary_can_be_named(
    groundup: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "megatron")
    command = ("convert", tmp_path / "megatron", tmp_path / "out", "--to", "megatron", "--tokenizer", "bytes")
    groundup(*command, "--vocab-size", 290)
    assert "the tokenizer bytes has 257 ids and the model 290: is it the model's own?" in caplog.text
    found = open_megatron(tmp_path / "out")
    assert (found.config.vocab_size, found.tokenizer.vocab_size) == (290, 257)
    groundup("convert", tmp_path / "out", tmp_path / "hf", "--to", "hf")
    with pytest.raises(CheckpointError, match="--vocab-size is only for Megatron-LM's checkpoints"):
        groundup("convert", tmp_path / "hf", tmp_path / "b", "--to", "native", "--vocab-size", 290)


def test_settings_without_effect_are_refused(groundup: Callable[..., str], tmp_path: Path) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    for to, flag, value, message in (
        ("hf", "--tp", 2, "--tp has no effect with --to hf, only with --to megatron"),
        ("native", "--names", "core", "--names has no effect with --to native"),
        ("megatron", "--shards", 2, "--shards has no effect with --to megatron, only with --to hf"),
        ("megatron", "--tp", 0, "--tp is 0, it must be 1 or more"),
        ("megatron", "--tp", 3, "--tp 3 does not divide 4 query heads"),
        ("hf", "--shards", 500, r"500 files cannot hold 28 tensors, .*Give 1 to 28, or a size"),
        ("hf", "--shards", "0", "'0' is neither a number of files"),
        ("hf", "--shards", "5 gigs", "'5 gigs' is neither .* nor a size"),
        ("hf", "--shards", "10B", "10B is too small"),
    ):
        with pytest.raises(ConfigError, match=message):
            groundup("convert", tmp_path / "hf", tmp_path / "out", "--to", to, flag, value)
        assert not (tmp_path / "out").exists()


def test_nothing_is_left_of_a_conversion_that_fails(
    groundup: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "megatron", tp=2)

    def differ(content: dict) -> None:  # type: ignore[type-arg]
        content["model"]["language_model"]["encoder"]["final_layernorm.weight"] += 1

    edit(rank_files(tmp_path / "megatron")[1], differ)
    for to in ("native", "hf", "megatron"):
        with pytest.raises(CheckpointError, match=r"final_layernorm\.weight differs from that of mp_rank_00"):
            groundup("convert", tmp_path / "megatron", tmp_path / "out", "--to", to)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    monkeypatch.setattr("groundup.core.progress.Progress.add", interrupt)
    for to in ("native", "hf", "megatron"):
        with pytest.raises(KeyboardInterrupt):
            groundup("convert", tmp_path / "hf", tmp_path / "out", "--to", to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "megatron"]


def test_nothing_is_left_of_a_conversion_whose_parity_fails(
    groundup: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    write_huggingface(tiny_model("gpt2", seed=1), tmp_path / "earlier")
    before = {path: path.read_bytes() for path in (tmp_path / "earlier").iterdir()}

    def wrong_bytes(tensor: torch.Tensor) -> memoryview:
        return bytes_of(tensor + 1)

    monkeypatch.setattr("groundup.checkpoint.safetensors.bytes_of", wrong_bytes)
    monkeypatch.setattr("groundup.checkpoint.write_torch.bytes_of", wrong_bytes)
    for to in ("native", "hf", "megatron"):
        for out in (tmp_path / "out", tmp_path / "new" / "folder" / "out"):
            with pytest.raises(CheckpointError, match=r"out: the written model differs .*; it was removed"):
                groundup("convert", tmp_path / "hf", out, "--to", to)
    with pytest.raises(CheckpointError, match=r"earlier: the written model differs"):
        groundup("convert", tmp_path / "hf", tmp_path / "earlier", "--to", "hf")
    assert {path: path.read_bytes() for path in (tmp_path / "earlier").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "hf"]


def test_an_earlier_export_stays_when_the_new_one_cannot_be_put_in_its_place(
    groundup: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    write_huggingface(tiny_model("gpt2", seed=1), tmp_path / "earlier")
    before = {path: path.read_bytes() for path in (tmp_path / "earlier").iterdir()}
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(MachineError, match="No space left"):
        groundup("convert", tmp_path / "hf", tmp_path / "earlier", "--to", "hf")
    assert {path: path.read_bytes() for path in (tmp_path / "earlier").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "hf"]


def test_weights_that_are_not_finite_are_named(groundup: Callable[..., str], tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    with torch.no_grad():
        ours.model.get_parameter("layers.1.mlp.w1.weight")[0, :3] = torch.nan
        ours.model.get_parameter("norm.weight")[2] = -torch.inf
    write_native(as_lazy(ours), tmp_path / "run")  # what exports to others refuse
    (tmp_path / "text.txt").write_text("the sea and the ships\n" * 20)
    named = r"not finite: 3 of 1,536 in layers\.1\.mlp\.w1\.weight, 1 of 32 in norm\.weight\. It is damaged"
    for command in (
        ("generate", "--prompt", "the"),
        ("generate", "--prompt", "the", "--temperature", 0),
        ("eval", "--data", tmp_path / "text.txt"),
        ("eval", "--data", tmp_path / "text.txt", "--tasks", "lambada"),
        ("convert", tmp_path / "out", "--to", "hf"),
        ("convert", tmp_path / "out", "--to", "megatron"),
    ):
        with pytest.raises(CheckpointError, match=named):
            groundup(command[0], tmp_path / "run", *command[1:])
    assert not (tmp_path / "out").exists()


def test_models_whose_numbers_overflow_are_told(groundup: Callable[..., str], tmp_path: Path) -> None:
    ours = tiny_model("llama")
    with torch.no_grad():  # finite, but not what is computed of it
        for block in ours.model.get_submodule("layers").children():
            block.get_parameter("mlp.w1.weight").fill_(1e30)
            block.get_parameter("mlp.w3.weight").fill_(1e30)
    write_huggingface(ours, tmp_path / "hf")
    (tmp_path / "text.txt").write_text("the sea and the ships\n" * 20)
    for command, message in (
        (("generate", "--prompt", "the"), "the model's logits are not finite"),
        (("generate", "--prompt", "the", "--num-samples", 2), "the model's logits are not finite"),
        (("eval", "--data", tmp_path / "text.txt"), "its loss is nan, though its weights are finite"),
        (("eval", "--data", tmp_path / "text.txt", "--tasks", "lambada"), "its loss is nan, though its"),
        (("convert", tmp_path / "out", "--to", "native"), "its logits are not finite, though its weights"),
    ):
        with pytest.raises(CheckpointError, match=message):
            groundup(command[0], tmp_path / "hf", *command[1:])
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_not_overwritten(
    groundup: Callable[..., str], tmp_path: Path
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for to in ("native", "hf", "megatron"):
        with pytest.raises(CheckpointError, match="mine: is not empty"):
            groundup("convert", tmp_path / "hf", tmp_path / "mine", "--to", to)
