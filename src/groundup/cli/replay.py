"""``groundup replay``."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from groundup.cli.options import Device
from groundup.cli.printing import origin_of, print_excerpt

if TYPE_CHECKING:
    from groundup.train.stability.replay import Replayer, SampleResult

_SHOWN_SAMPLES = 16
_SHOWN_DOCUMENTS = 3


def replay(
    dump: Path,
    *,
    device: Device = "auto",
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    samples: bool = True,
    characters: int = 200,
) -> None:
    """Run one training step again, on one process: why was it not finite, which sample is odd?

    A step whose gradients are not finite leaves a step dump in the run folder's `failures`; with
    `spike_guard.step_dump=true` so does a step that the spike guard flagged. A dump holds the step's samples,
    the weights before it and the states of the generators: neither the data nor the run is needed, whatever
    the layout was.

    Prints the loss and the gradient norm then and now, the first module whose numbers are not finite, and
    the loss and gradient norm of each sample alone (without dropout), the worst with their text and origin.
    The exit code is 0 where the step gave the same as in the run.

    For example:

        groundup replay runs/a/failures/step-120
        groundup replay runs/a/failures/step-120 --precision fp32

    Args:
        dump: Folder of the step dump.
        precision: Of the matrix products, instead of the run's: is that the reason?
        samples: Whether to run each sample alone too, which takes as long as the step.
        characters: How much of each document of the worst samples to show; 0 for origins alone.
    """
    from groundup.core.errors import TrainingError
    from groundup.train.stability.nan_debug import describe_findings
    from groundup.train.stability.replay import agreement, open_replayer

    replayer = open_replayer(dump, device=device, precision=precision)
    opened, facts = replayer.dump, replayer.dump.about.facts
    last = facts.first_sample + facts.num_samples - 1
    print(f"step {facts.step}, samples {facts.first_sample} to {last}: {facts.reason}")
    _print_machine(replayer)
    result = replayer.run()
    agrees = agreement(result, opened, replayer.precision)
    verdict = f"the same, {agrees}" if agrees else "NOT the same"
    print(f"then: loss {facts.loss:.6g}, gradient norm {facts.grad_norm:.6g}")
    print(f"now:  loss {result.loss:.6g}, gradient norm {result.grad_norm:.6g}: {verdict}")
    if result.findings:
        found = describe_findings(
            result.findings, num_micro_batches=result.num_micro_batches, num_samples=facts.num_samples
        )
        print(f"{found[0].upper()}{found[1:]}.")
    elif result.largest_gradient:
        print(f"The largest gradient is {result.largest_gradient}.")
    print(f"The largest weight is {result.largest_weight}.")
    if samples:
        _print_samples(replayer, replayer.samples(), characters)
    if not agrees:
        raise TrainingError(
            "the step did not give what it gave in the run", where=dump, fix=_reason_to_differ(replayer)
        )


def _print_machine(replayer: "Replayer") -> None:
    import torch

    from groundup.parallel.device import describe_device

    about, precision = replayer.dump.about, replayer.precision
    degrees = [f"{name} {replayer.dump.about.layout[name]}" for name in ("pp", "dp", "cp", "tp")]
    print(
        f"then: {about.device}, {replayer.dump.about.precision}, torch {about.torch},"
        f" {', '.join(degrees)}\n"
        f"now:  {describe_device(precision.device)}, {precision.name}, torch {torch.__version__}, one process"
    )


def _reason_to_differ(replayer: "Replayer") -> str:
    """Names what may have made the difference."""
    config, layout = replayer.dump.config, replayer.dump.about.layout
    if replayer.precision.name != replayer.dump.about.precision:
        return f"So precision {replayer.dump.about.precision} has to do with it."
    dropout = config.model.dropout or config.model.attention_dropout
    if dropout and layout["pp"] * layout["cp"] * layout["tp"] > 1:
        return "Dropout drew otherwise: several ranks shared each sample, which one process cannot repeat."
    return "Look at the differences between then and now above; on the same machine, suspect the hardware."


def _print_samples(replayer: "Replayer", results: "list[SampleResult]", characters: int) -> None:
    ranked = sorted(results, key=lambda one: _badness(one, one.loss), reverse=True)
    worst, steepest = ranked[0], max(results, key=lambda one: _badness(one, one.grad_norm))
    shown = sorted({*ranked[:_SHOWN_SAMPLES], steepest}, key=lambda result: result.index)
    print("each sample alone:" if len(shown) == len(results) else f"the {len(shown)} worst samples alone:")
    for result in shown:
        print(f"  sample {result.index}: loss {result.loss:.4f}, gradient norm {result.grad_norm:.4g}")
    if worst is steepest:
        _print_sample(replayer, "the worst", worst, characters)
    else:
        _print_sample(replayer, "the largest loss", worst, characters)
        _print_sample(replayer, "the largest gradient", steepest, characters)


def _print_sample(replayer: "Replayer", which: str, result: "SampleResult", characters: int) -> None:
    row = result.index - replayer.dump.about.facts.first_sample
    ids = replayer.dump.batch.tokens_BT[row].tolist()
    documents = replayer.dump.about.sources[row]
    print(f"{which}, sample {result.index}, holds {len(documents)} document(s):")
    begin = 0
    for document in documents[:_SHOWN_DOCUMENTS]:
        length = document["end"] - document["begin"]
        text = replayer.dump.tokenizer.decode(ids[begin : begin + length])
        _print_document(document, text, characters)
        begin += length
    if len(documents) > _SHOWN_DOCUMENTS:
        print(f"  and {len(documents) - _SHOWN_DOCUMENTS} more")


def _badness(result: "SampleResult", value: float) -> tuple[bool, float, int]:
    finite = math.isfinite(result.loss) and math.isfinite(result.grad_norm)
    return (not finite, value if finite else 0.0, -result.index)


def _print_document(document: dict[str, Any], text: str, characters: int) -> None:
    came = origin_of(document["source"], document["line"], document["url"])
    print(
        f"  document {document['document']:,}, tokens {document['begin']:,} to {document['end']:,} of"
        f" {document['length']:,}; {came}"
    )
    print_excerpt(text, characters)
