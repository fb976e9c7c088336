"""Why a run is not what its reference is: the usual suspects, by what differs and how it deviates."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from groundup.report.run_records import Record, RunRecords, number
from groundup.verify.reference_band import EDGES, Window
from groundup.verify.references import Reference

Shape = Literal["inside", "wrong start", "diverged", "spikes", "plateau", "below", "drift", "offset"]

SHAPES: Mapping[Shape, str] = {
    "inside": "as it should be",
    "wrong start": "the first loss is not ln(vocabulary), that of knowing nothing",
    "diverged": "the loss has risen, or is not a number",
    "spikes": "single losses far above their neighbours",
    "plateau": "the loss has stopped falling where the reference's falls",
    "below": "the loss is lower than it should be, which is no good news",
    "drift": "inside at first, then further and further away",
    "offset": "away from the beginning on",
}

NO_LOSS = (
    *("run_dir", "log.", "checkpoint.", "sample.", "eval.", "validation.", "watchdog.", "threads", "device"),
    *("data.path", "data.tokenizer", "seed", "micro_batch_size", "layout.", "recompute.", "compile"),
    *("deterministic", "start.anew", "ema."),
)
"""Beginnings of settings that leave a loss as it is, or as any other seed would make it."""

_Kind = Literal[
    "rate",
    "warm-up",
    "batch",
    "vocabulary",
    "data",
    "init",
    "precision",
    "decay",
    "moments",
    "clipping",
    "optimizer",
    "model",
    "dropout",
    "weights",
]

_KINDS: Mapping[_Kind, tuple[tuple[str, ...], str]] = {
    "rate": (
        ("optimizer.lr", "optimizer.adamw.lr", "schedule"),
        "Compare `lr` in metrics.jsonl with what you meant; num_steps is the schedule's horizon.",
    ),
    "warm-up": (
        ("warmup.",),
        "Without it the first steps are too large for Adam's young moments: look at `grad_norm` in them.",
    ),
    "batch": (
        ("global_batch_size", "data.sequence_length", "batch_ramp."),
        "The learning rate belongs to a number of tokens a step: scale it, or set the batch back.",
    ),
    "vocabulary": (
        ("model.vocab_size",),
        "Losses a token of other vocabularies cannot be compared, bits per byte can.",
    ),
    "data": (("data.",), "Look at what is trained on: `groundup tokens inspect`, `groundup tokens trace`."),
    "init": (("model.init_std",), "The first loss should be ln(vocabulary)."),
    "precision": (
        ("precision", "loss_scale.", "optimizer.state_dtype", "optimizer.adamw.state_dtype"),
        "Train some hundred steps with precision=fp32 and compare.",
    ),
    "decay": (
        ("optimizer.weight_decay", "optimizer.adamw.weight_decay"),
        "It shows late: norms of weights grow without it, and shrink with too much.",
    ),
    "moments": (
        tuple(f"optimizer.{name}" for name in ("beta", "adamw.beta", "momentum", "eps", "adamw.eps")),
        "A beta2 near 1 with short warm-up, or a large eps, changes the size of the first steps.",
    ),
    "clipping": (("clip_grad_norm", "spike_guard."), "Look for a `grad_norm` far above those around it."),
    "optimizer": (("optimizer.",), "Learning rates of one optimizer say nothing for another."),
    "dropout": (("model.dropout", "model.attention_dropout"), "Dropout raises the training loss."),
    "model": (("model.",), "Print both with `groundup train CONFIG --print-config`."),
    "weights": (("start.",), "The run did not begin with fresh weights."),
}  # fmt: skip
"""Beginnings of settings, of which the longest that fits decides, and what to check."""

_ORDER: Mapping[Shape, tuple[_Kind, ...]] = {
    "inside": ("rate", "warm-up", "batch", "vocabulary", "data"),
    "wrong start": ("weights", "init", "vocabulary", "model", "precision"),
    "diverged": ("rate", "warm-up", "clipping", "precision", "optimizer", "moments", "init"),
    "spikes": ("clipping", "rate", "warm-up", "moments", "precision", "data"),
    "plateau": ("rate", "dropout", "init", "precision", "optimizer", "decay", "model"),
    "below": ("data", "vocabulary", "batch", "weights", "model", "rate"),
    "drift": ("rate", "batch", "optimizer", "decay", "moments", "data", "warm-up"),
    "offset": ("vocabulary", "data", "batch", "rate", "warm-up", "optimizer", "init", "model", "dropout"),
}
_SHIFT = "targets that are not the next tokens (shifted twice, or shuffled), or a loss over the wrong ones"
_UNSEEN: Mapping[Shape, tuple[tuple[str, str], ...]] = {
    "inside": (),
    "wrong start": (
        ("a loss that is no mean over targets, or other initial values", "Is it divided by their number?"),
    ),
    "diverged": (("broken data or kernels", "See `groundup replay` for a step that went wrong."),),
    "spikes": (("single bad documents", "`groundup tokens trace RUN --step STEP` names those of a spike."),),
    "plateau": (
        (_SHIFT, "A loss near the unigram entropy (`groundup eval` prints it) learns frequencies alone."),
        ("parameters that get no gradient", "Look at `grad_norm`, and `groundup checkpoint diff` of two."),
    ),
    "below": (
        ("tokens that see what they shall predict: no causal mask, targets not shifted", "Generate a text."),
        ("data that repeats itself or is not shuffled", "`groundup corpus dedup`; data.order."),
    ),
    "drift": (
        (_SHIFT, "Print a batch: its targets beside its tokens. `groundup tokens trace` has their text."),
        ("other data, or in another order", "Compare fingerprints: `groundup tokens verify`."),
    ),
    "offset": (
        (_SHIFT, "Print a batch: its targets beside its tokens. `groundup tokens trace` has their text."),
        ("samples that are not shuffled, or other data", "Compare fingerprints: `groundup tokens verify`."),
    ),
}  # fmt: skip
_OF_RANKS = (
    "ranks that do not compute the same model",
    "`groundup verify parallel`, `groundup verify resume`.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """What may be the reason, and what to check; ``seen`` where the run does differ in it."""

    what: str
    check: str
    seen: bool


def shape_of(run: RunRecords, windows: Sequence[Window], first_loss: float | None) -> Shape:
    """How the run deviates; "inside" where it does not."""
    outside = [window for window in windows if not window.is_inside]
    vocab_size = number(run.config.get("model.vocab_size"))
    is_low = bool(outside) and windows[-1].deviation < -1
    if first_loss and vocab_size and abs(first_loss - math.log(vocab_size)) > 0.5 and not is_low:
        return "wrong start"
    if not outside:
        return "inside"
    training = [window for window in windows if window.kind == outside[0].kind]
    last = training[-1]
    lowest = min((window.loss for window in training if math.isfinite(window.loss)), default=math.inf)
    if not math.isfinite(last.loss) or last.loss > 1.1 * lowest:
        return "diverged"
    if _spikes(run.train):
        return "spikes"
    if last.deviation < 0 or max(outside, key=lambda window: abs(window.deviation)).deviation < 0:
        return "below"
    middle = training[len(training) // 2]
    if last.deviation > 1 and middle.loss - last.loss < 0.25 * (middle.expected - last.expected):
        return "plateau"
    return "offset" if outside[0] in training[: len(EDGES)] else "drift"


def _spikes(records: Sequence[Record]) -> bool:
    """Whether a loss stands out from those before and after it by far more than these from each other."""
    losses = [loss for record in records if (loss := number(record.get("loss"))) is not None]
    steps = [abs(after - before) for before, after in itertools.pairwise(losses)]
    usual = sorted(steps)[len(steps) // 2] if steps else 0.0
    return any(
        here - max(before, after) > max(0.5, 8 * usual)
        for before, here, after in zip(losses, losses[1:], losses[2:], strict=False)
    )


def suspects(run: RunRecords, reference: Reference, shape: Shape, data: str) -> list[Suspect]:
    """The suspects, the most likely first: what differs, then what no setting tells.

    Args:
        run: Whose settings are compared.
        reference: With which.
        shape: Of the deviation.
        data: Fingerprint of the run's training data; empty where not known.
    """
    order = _ORDER[shape]
    found: dict[_Kind, list[tuple[float, str]]] = {}
    for key, ours, theirs in differences(run, reference):
        found.setdefault(_kind_of(key), []).append(
            (_size(ours, theirs), f"{key} {_shown(ours)}, reference {_shown(theirs)}")
        )
    if rates := _rates(run, reference):
        found.setdefault("rate", []).append((0.0, rates))
    if reference.tokenizer and run.tokenizer and run.tokenizer != reference.tokenizer:
        found.setdefault("vocabulary", []).append((1.0, f"another tokenizer ({run.tokenizer})"))
    if reference.data and data and data != reference.data:
        found.setdefault("data", []).append((1.0, f"other data than {reference.data_name} ({data})"))

    def place(kind: _Kind) -> float:
        listed = order.index(kind) if kind in order else len(order) + list(_KINDS).index(kind)
        return listed - min(3.0, max(size for size, _ in found[kind]))

    seen = [
        Suspect(
            "; ".join(words for _, words in sorted(found[kind], reverse=True)), _KINDS[kind][1], seen=True
        )
        for kind in sorted(found, key=place)
    ]
    unseen = list(_UNSEEN[shape])
    if shape != "inside" and any(one.get("ranks") != 1 for one in run.starts or ({},)):  # or not recorded
        unseen.append(_OF_RANKS)
    return [*seen, *(Suspect(what, check, seen=False) for what, check in unseen)]


def differences(run: RunRecords, reference: Reference) -> Iterator[tuple[str, Any, Any]]:
    """Settings that both have, differ and matter: key, value of the run, value of the reference."""
    ours, theirs = _with_horizon(run.config), _with_horizon(reference.config)
    for key, value in theirs.items():
        if key in ours and ours[key] != value and not key.startswith(NO_LOSS):
            yield key, ours[key], value


def _with_horizon(config: Mapping[str, Any]) -> dict[str, Any]:
    """The length of the schedule in place of the two settings that decide it."""
    found = dict(config)
    steps, horizon = found.pop("num_steps", None), found.pop("schedule_steps", 0)
    return found if steps is None else {"schedule's horizon": horizon or steps, **found}


def _kind_of(key: str) -> _Kind:
    fitting = [
        (len(start), kind)
        for kind, (starts, _) in _KINDS.items()
        for start in starts
        if key.startswith(start)
    ]
    return max(fitting)[1] if fitting else "model"


def _size(ours: Any, theirs: Any) -> float:
    """How many doublings lie between two figures; 1 for other values."""
    one, other = number(ours), number(theirs)
    return abs(math.log2(one / other)) if one and other and one * other > 0 else 1.0


def _shown(value: Any) -> str:
    return "has none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _rates(run: RunRecords, reference: Reference) -> str:
    """Where the learning rate leaves that of the reference by more than a twentieth; empty where nowhere."""
    for record in run.train:
        step, ours = int(record["step"]), number(record.get("lr"))
        if ours is None or step > len(reference.learning_rates):
            continue
        theirs = float(reference.learning_rates[step - 1])
        if abs(ours - theirs) > 0.05 * max(ours, theirs):
            return f"the learning rate of step {step:,} was {ours:.3g}, the reference's {theirs:.3g}"
    return ""
