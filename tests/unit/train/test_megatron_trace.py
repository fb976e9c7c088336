"""A run goes on from Megatron-LM's checkpoint as Megatron-LM itself went on.

``megatron_trace.txt`` holds what ``pretrain_gpt.py`` of Megatron-LM (commit 992da75) printed of iterations 7
to 16 and of its validations, and ``megatron_iter_0000006.pt`` the checkpoint that it wrote after six: fp32,
one process on a CPU, with PyTorch's layer norm and AdamW in place of apex's. The flags were

    --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
    --micro-batch-size 2 --global-batch-size 4 --train-iters 16 --lr-decay-iters 14 --lr-warmup-iters 5
    --lr 0.02 --min-lr 0.002 --lr-decay-style cosine --start-weight-decay 0.0 --end-weight-decay 0.4
    --weight-decay-incr-style linear --clip-grad 1.0 --adam-beta2 0.95 --attention-dropout 0
    --hidden-dropout 0 --tokenizer-type NullTokenizer --vocab-size 299 --make-vocab-size-divisible-by 32
    --data-path 0.3 set0_text_document 0.7 set1_text_document --split 80,10,10 --log-interval 1
    --eval-interval 4 --eval-iters 2 --save-interval 6 --init-method-std 0.1 --seed 4321

on the data of ``megatron_run.py``. The checkpoint was saved again with only what a reader needs of it.
"""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.checkpoint.native.model import open_native, write_native
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.core.config import from_dict, to_dict
from groundup.tokens.sampling.data_config import DataConfig, SourceConfig
from groundup.train.adamw import AdamW
from groundup.train.config import StartConfig, TrainConfig
from groundup.train.log_config import LogConfig
from groundup.train.measurements import ValidationConfig
from groundup.train.schedules import lr_ratio
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.warmup import Steps
from tests.guides import blocks
from tests.megatron_files import edit, rank_files
from tests.runs import run
from tests.tiny import tiny_model, tiny_tokenizer
from tests.unit.train.megatron_run import write_data

HERE = Path(__file__).parent
NUMBER = re.compile(r"-?\d+\.\d+(?:E[+-]\d+)?")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The run of the flags, begun with the checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    rank = folder / "megatron" / "iter_0000006" / "mp_rank_00" / "model_optim_rng.pt"
    rank.parent.mkdir(parents=True)
    shutil.copy(HERE / "megatron_iter_0000006.pt", rank)
    (folder / "megatron" / "latest_checkpointed_iteration.txt").write_text("6")
    tokenizer = tiny_tokenizer()
    tokenizer.save(folder / "tokenizer")
    # With the rows that fill up the vocabulary: Megatron-LM's loss counts them.
    stored = open_megatron(folder / "megatron", tokenizer=tokenizer, vocab_size=320, moments=True)
    write_native(stored, folder / "native")
    sources = {
        f"set{number}": SourceConfig(path=path, weight=weight)
        for number, (path, weight) in enumerate(zip(write_data(folder), (0.3, 0.7), strict=True))
    }
    return TrainConfig(
        run_dir=folder / "run",
        model=stored.config,
        data=DataConfig(
            sources=sources,
            tokenizer=folder / "tokenizer",
            split="80,10,10",
            sequence_length=16,
            order="megatron",
        ),
        num_steps=16,
        micro_batch_size=2,
        global_batch_size=4,
        optimizer=AdamW(lr=0.02, beta2=0.95, weight_decay=0.4, weight_decay_start=0.0),
        schedule=Cosine(min_ratio=0.1),
        schedule_steps=14,
        schedule_unit="samples",
        warmup=Steps(steps=5),
        precision="fp32",
        device="cpu",
        seed=4321,
        start=StartConfig(path=folder / "native", state=True),
        validation=ValidationConfig(interval=4, num_batches=4),
        log=LogConfig(interval=1, style="megatron_2023"),
    )


def test_fewer_steps_of_a_planned_run(config: TrainConfig, tmp_path: Path) -> None:
    data = dataclasses.replace(config.data, planned_samples=64)
    begun = dataclasses.replace(config, run_dir=tmp_path / "run", data=data, num_steps=9)
    losses = [record["loss"] for record in run(begun) if record["kind"] == "train"]
    longer = run(dataclasses.replace(begun, num_steps=12))
    losses += [record["loss"] for record in longer if record["kind"] == "train"][3:]
    recorded = re.findall(r"lm loss: ([\dE.+-]+)", (HERE / "megatron_trace.txt").read_text())
    assert losses == pytest.approx([float(loss) for loss in recorded[:6]], rel=1e-4)
    with pytest.raises(ValueError, match=r"planned_samples 64 is less than the 68 samples of num_steps 17"):
        dataclasses.replace(begun, num_steps=17)


def test_the_checkpoint_itself_begins_the_run(config: TrainConfig, tmp_path: Path) -> None:
    """Without being converted, and with the rows that fill up the vocabulary: the config has as many ids."""
    assert config.start.path is not None
    folder = tmp_path / "megatron"
    shutil.copytree(config.start.path.parent / "megatron", folder)
    tiny_tokenizer().save(folder / "tokenizer")
    short = dataclasses.replace(config.data, planned_samples=64)
    direct = dataclasses.replace(
        config, data=short, num_steps=8, start=StartConfig(path=folder, state=True), run_dir=tmp_path / "with"
    )
    recorded = re.findall(r"lm loss: ([\dE.+-]+)", (HERE / "megatron_trace.txt").read_text())
    theirs = [float(loss) for loss in recorded[:2]]
    assert [record["loss"] for record in run(direct) if record["kind"] == "train"] == pytest.approx(
        theirs, rel=1e-4
    )


def comparable(log: str) -> list[str]:
    """The lines of iterations and validations, without the time that they took."""
    chosen = [line for line in log.splitlines() if line.startswith((" iteration ", " validation loss "))]
    return [re.sub(r"\(ms\): [\d.]+", "", line) for line in chosen]


def test_the_trace_is_megatrons_own(config: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    counts = read_checkpoint_manifest(resolve_checkpoint(config.start.path)).counts
    assert (counts.step, counts.samples) == (6, 24)
    run(config)
    ours, theirs = comparable(capsys.readouterr().out), comparable((HERE / "megatron_trace.txt").read_text())
    # Megatron-LM validates twice after the last iteration, where we do it once.
    theirs = [line for line in theirs if not line.startswith(" validation loss at iteration 16 ")]
    assert [NUMBER.sub("", line) for line in ours] == [NUMBER.sub("", line) for line in theirs]
    for own, recorded in zip(ours, theirs, strict=True):
        for mine, number in zip(NUMBER.findall(own), NUMBER.findall(recorded), strict=True):
            rounding = 0 if "E" in number else 6e-4  # grad norm, printed to three places
            assert float(mine) == pytest.approx(float(number), rel=1e-4, abs=rounding), own


def test_the_settings_of_the_guide_are_known() -> None:
    (block,) = blocks("docs/guides/conversion.md", "yaml")
    model = to_dict(tiny_model("gpt2", max_sequence_length=1024).config)
    config = from_dict(TrainConfig, {**yaml.safe_load(block), "model": model}, where="the guide")
    # After 8,000 samples of a warm-up of 25,600, as in misc/lr_wd_schedules.json of the reference.
    rate = lr_ratio(config.schedule, 8000, warmup=config.warmup_length, horizon=config.horizon)
    assert 1.5e-4 * rate == pytest.approx(4.6875e-05)
    assert config.optimizer.lr * config.schedule.min_ratio == pytest.approx(1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "change",
    [
        {"schedule_unit": "steps"},
        {"optimizer": AdamW(lr=0.02, beta2=0.95, weight_decay=0.4)},
        {"seed": 1234},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_is_needed(config: TrainConfig, tmp_path: Path, change: dict[str, object]) -> None:
    """The trace is sharp enough to tell the settings of Megatron-LM from ours."""
    records = run(dataclasses.replace(config, run_dir=tmp_path / "other", **change))  # type: ignore[arg-type]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    recorded = re.findall(r"lm loss: ([\dE.+-]+)", (HERE / "megatron_trace.txt").read_text())
    assert losses != pytest.approx([float(loss) for loss in recorded], rel=1e-4)


def test_skipped_iterations_have_not_advanced_the_schedule(config: TrainConfig, tmp_path: Path) -> None:
    assert config.start.path is not None
    shutil.copytree(config.start.path.parent / "megatron", tmp_path / "megatron")

    def skip_one(content: dict[str, Any]) -> None:
        content["opt_param_scheduler"]["num_steps"] -= 4

    (path,) = rank_files(tmp_path / "megatron")
    edit(path, skip_one)
    stored = open_megatron(tmp_path / "megatron", tokenizer=tiny_tokenizer(), vocab_size=320, moments=True)
    write_native(stored, tmp_path / "native")
    start = StartConfig(path=tmp_path / "native", state=True)
    records = run(dataclasses.replace(config, run_dir=tmp_path / "run", start=start))
    rates = [record["lr"] for record in records if record["kind"] == "train"]
    assert rates[0] == pytest.approx(0.02)  # of 20 samples, the end of the warm-up
    again = write_megatron(open_native(tmp_path / "native"), tmp_path / "again")
    (path,) = rank_files(again.parent)
    kept = load_pickled(path)
    assert kept["opt_param_scheduler"]["num_steps"] == 20
    assert vars(kept["args"])["consumed_train_samples"] == 24
