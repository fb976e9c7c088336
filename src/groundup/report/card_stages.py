"""The stages that a model went through, each a run: pretraining, then conversations, preferences, rewards."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.export import MANIFEST, ExportManifest
from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, has_step_name, list_checkpoints, step_of
from groundup.core.errors import GroundupError
from groundup.core.manifest import read_manifest
from groundup.core.progress import human_seconds
from groundup.report.card_text import hub_id, place, without_places
from groundup.report.run_records import Place, Record, RunRecords, number, read_run
from groundup.train.metrics import METRICS_FILE
from groundup.train.setup import CONFIG_FILE

_MOST_STAGES = 20
_ADAPTER = "adapter"

_TITLES = {
    "sft": "Supervised fine-tuning (SFT)",
    "dpo": "Preferences (DPO)",
    "grpo": "Rewards (GRPO)",
}
_EVERY_RECORD = frozenset(
    ("kind", "step", "loss", "grad_norm", "lr", "adamw_lr", "tokens_per_second", "flops_per_second", "mfu",
     "loss_scale", "skipped_steps", "outliers", "batch_size", "samples", "memory_bytes", "epoch", "tokens",
     "eta_seconds")
)  # fmt: skip
"""What each record of training has, whatever is learned."""
_SHOWN_SETTINGS = ("model.", "data.", "layout.", "optimizer.", "schedule", "warmup", "batch_ramp.", "stage.",
                   "lora.", "ema.", "spike_guard.", "recompute.", "loss_scale.")  # fmt: skip
_SHOWN_NAMES = ("num_steps", "micro_batch_size", "global_batch_size", "clip_grad_norm", "precision", "seed",
                "deterministic", "compile")  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class CardStage:
    """A run that is part of a model's making.

    Attributes:
        run: Its records.
        step: Of the checkpoint that was taken.
        base: What it began with: a path of the config; empty for random weights.
    """

    run: RunRecords
    step: int
    base: str

    @property
    def kind(self) -> str:
        """``pretrain``, ``sft``, ``dpo`` or ``grpo``."""
        return str(self.run.config.get("stage.kind", "pretrain"))

    @property
    def rank(self) -> int:
        """Of the adapters that alone were trained; 0 for none."""
        return int(self.run.config.get("lora.rank") or 0)

    @property
    def title(self) -> str:
        """What was done, in words."""
        title = _TITLES.get(self.kind, "Pretraining")
        if self.kind == "pretrain" and self.base:
            title = "Further pretraining"
        return f"{title} of adapters (LoRA)" if self.rank else title

    @property
    def end(self) -> Place:
        """Tokens and hours up to the checkpoint."""
        return self.run.place(self.step)

    def last(self, kind: str) -> Record:
        """The last record of a kind up to the checkpoint; empty where there is none."""
        found = [record for record in self.run.kinds.get(kind, ()) if int(record["step"]) <= self.step]
        return found[-1] if found else {}

    @property
    def start(self) -> Mapping[str, Any]:
        """What the newest start up to the checkpoint says of machine, versions and data."""
        found = [one for one in self.run.starts if int(one["step"]) <= self.step]
        return found[-1] if found else {}

    @property
    def facts(self) -> list[str]:
        """What the run said of its data before training."""
        return [without_places(str(fact)) for fact in self.start.get("facts") or ()]


def stages_to(path: Path) -> list[CardStage]:
    """The stages that led to a model, the first first; none for a model that is of no run that is here.

    Args:
        path: A checkpoint, run folder, adapter of a run or folder that a conversion of one wrote.
    """
    stages: list[CardStage] = []
    found = _run_of(path)
    while found and len(stages) < _MOST_STAGES:
        folder, step = found
        try:
            run = read_run(folder, folder.absolute().name)
        except GroundupError:  # its files were moved or damaged
            break
        base = str(run.config.get("start.path") or "")
        stages.insert(0, CardStage(run, run.last_step if step is None else step, base))
        found = _run_of(run.path(base)) if base else None
    return stages


def stage_rows(stage: CardStage) -> Iterator[tuple[str, str]]:
    """What is known of a stage's training, as names and values."""
    config, train, end, start = stage.run.config, stage.last("train"), stage.end, stage.start
    planned = number(config.get("num_steps"))
    cut = f" of {planned:,.0f} planned" if planned and stage.step < planned else ""
    began = f"the weights of {hub_id(stage.base) or place(stage.base)}" if stage.base else "random weights"
    yield "began with", began
    yield "steps", f"{stage.step:,}{cut}"
    yield "batch", f"{_number(config, 'global_batch_size')} {_samples(config)}"
    epochs = number(train.get("epoch"))
    passes = f", {epochs:.3g} epochs" if epochs is not None else ""
    yield "tokens", f"{end.tokens:,.0f}{passes}" if train else "not recorded"
    yield "time", f"{human_seconds(3600 * end.hours)} of training" if end.hours else "not recorded"
    ranks = start.get("ranks")
    devices = f"{ranks} x {start.get('device')}" if ranks and ranks > 1 else start.get("device")
    yield "machine", str(devices or "not recorded")
    if restarts := sum(0 < int(one["step"]) < stage.step for one in stage.run.starts):
        yield "restarts", f"{restarts:,}"
    yield "layout", "one device" if ranks == 1 else _layout(config)
    yield "precision", str(start.get("precision") or f"{config.get('precision', 'not recorded')} (setting)")
    yield "optimizer", _optimizer(config)
    yield "learning rate", _learning_rate(config)
    if stage.rank:
        targets = config.get("lora.targets")
        alpha = config.get("lora.alpha")
        yield "adapters", f"rank {stage.rank}, alpha {alpha}, on {targets} linear layers of the blocks"
    yield from _objective(stage)
    yield "training loss", _last(train, "loss", "the last")
    for kind in ("validation", "test"):
        if record := stage.last(kind):
            bits = number(record.get("bits_per_byte"))
            said = f", {bits:.4f} bits per byte" if bits else ""
            yield f"{kind} loss", f"{_last(record, 'loss', '')}{said} (step {record['step']:,})"
    for name in train:
        if name not in _EVERY_RECORD and (value := number(train[name])) is not None:
            yield name.replace("_", " "), f"{value:.4g}, the last"
    versions = [f"{name} {start[name]}" for name in ("groundup", "torch") if start.get(name)]
    yield "versions", ", ".join(versions) or "not recorded"


def stage_settings(stage: CardStage) -> str:
    """The settings that decide what a run learns, as the command line takes them."""
    return "\n".join(
        f"{key}={_value(key, value)}"
        for key, value in stage.run.config.items()
        if (key.startswith(_SHOWN_SETTINGS) or key in _SHOWN_NAMES) and value not in (None, "", [], {})
        if stage.rank or not key.startswith("lora.")
    )


def _run_of(path: Path) -> tuple[Path, int | None] | None:
    """The run folder that a model is of, and the step, where the path names one."""
    if has_step_name(path) and path.parent.name == CHECKPOINTS:
        return path.parent.parent, step_of(path)
    if any((path / name).is_file() for name in (CONFIG_FILE, METRICS_FILE)) or (path / CHECKPOINTS).is_dir():
        return path, _newest_step(path)
    if path.name == _ADAPTER and (path.parent / CONFIG_FILE).is_file():
        return path.parent, _newest_step(path.parent)
    if (path / MANIFEST).is_file():
        try:
            source = Path(read_manifest(path / MANIFEST, ExportManifest).inputs.get("source", ""))
        except GroundupError:  # of another version
            return None
        return _run_of(source) if source != path and source.is_dir() else None
    return None


def _newest_step(folder: Path) -> int | None:
    for checkpoint in reversed(list_checkpoints(folder / CHECKPOINTS)):
        try:
            return read_checkpoint_manifest(checkpoint).counts.step
        except GroundupError:  # damaged
            continue
    return None


def _number(config: Mapping[str, Any], key: str) -> str:
    value = number(config.get(key))
    return "?" if value is None else f"{value:,.0f}"


def _samples(config: Mapping[str, Any]) -> str:
    if config.get("stage.kind") == "grpo":
        return f"completions of at most {_number(config, 'stage.max_new_tokens')} tokens"
    return f"samples of {_number(config, 'data.sequence_length')} tokens"


def _layout(config: Mapping[str, Any]) -> str:
    degrees = {name: config.get(f"layout.{name}") for name in ("dp", "tp", "pp", "cp", "zero")}
    said = [f"{name}={value}" for name, value in degrees.items() if value not in (None, 0, 1)]
    return ", ".join(said) or "data parallel over all ranks, without sharding"


def _optimizer(config: Mapping[str, Any]) -> str:
    names = ("beta1", "beta2", "momentum", "eps", "weight_decay")
    values = [f"{name} {config[key]}" for name in names if (key := f"optimizer.{name}") in config]
    clip = config.get("clip_grad_norm")
    clipped = [f"gradients clipped to a norm of {clip}"] if clip else []
    return ", ".join([str(config.get("optimizer.kind", "not recorded")), *values, *clipped])


def _learning_rate(config: Mapping[str, Any]) -> str:
    parts = [f"{config.get('optimizer.lr', 'not recorded')} at its peak"]
    if config.get("optimizer.adamw.lr") is not None:
        parts.append(f"{config['optimizer.adamw.lr']} for what AdamW trains")
    parts.append(f"{config.get('schedule.kind', 'unknown')} schedule")
    warmup = {
        key.removeprefix("warmup."): value for key, value in config.items() if key.startswith("warmup.")
    }
    if warmup.get("kind"):
        said = " ".join(f"{name} {value}" for name, value in warmup.items() if name != "kind")
        parts.append(f"warm-up by {said or warmup['kind']}")
    return ", ".join(parts)


def _objective(stage: CardStage) -> Iterator[tuple[str, str]]:
    names = {
        "sft": ("template", "answers"),
        "dpo": ("loss", "beta", "label_smoothing", "target_margin", "template"),
        "grpo": ("reward", "reward_weights", "group_size", "beta", "clip_low", "clip_high", "normalisation"),
    }.get(stage.kind, ())
    config = stage.run.config
    said = [
        f"{name.replace('_', ' ')} {_value(name, value)}"
        for name in names
        if (value := config.get(f"stage.{name}")) not in (None, "", [], 0.0)
    ]
    if said:
        yield "objective", ", ".join(said)


def _value(key: str, value: Any) -> str:
    """A value of a setting, without the folders of this machine."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_value(key, one) for one in value)}]"
    is_path = key.endswith(("path", "tokenizer", "_dir", "template", "reward")) and isinstance(value, str)
    return place(value) if is_path else without_places(str(value))


def _last(record: Record, name: str, said: str) -> str:
    value = number(record.get(name))
    if value is None:
        return "not recorded"
    return f"{value:.4f}, {said}" if said else f"{value:.4f}"
