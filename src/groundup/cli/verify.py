"""``groundup verify``: is my run right?"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from groundup.cli.options import MODEL_AS_IT_IS, ConfigFile, ModelOptions, Override
from groundup.cli.run_config import run_config
from groundup.core.errors import ConfigError, TrainingError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.parallel.layout import Layout
    from groundup.train.config import TrainConfig

_LAYOUTS = ("dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3", "tp2", "cp2", "pp2", "dp2-tp2-zero3")
_PATH_WIDTH = 44


def parallel(
    config: ConfigFile = None,
    *overrides: Override,
    layouts: Annotated[tuple[str, ...], cyclopts.Parameter(consume_multiple=True)] = _LAYOUTS,
    steps: int = 4,
    shrink: bool = True,
) -> None:
    """Check that a run trains the same model under every layout: losses and gradient norms, step by step.

    Trains a few steps of your own config and data under each layout, in fp32 with plain SGD and without
    dropout, and compares them with one process. Needs no GPU: ranks share this machine. The exit code is 1
    where a layout deviates by more than 1e-5 or does not train.

    For example:

        groundup verify parallel run.yaml
        groundup verify parallel run.yaml --layouts dp4-zero3 tp4 pp2-gpipe tp2-pp2 --no-shrink --steps 2

    Args:
        layouts: What to compare with one process, e.g. dp2-tp2-zero3. Pipelines are 1F1B, or with
            gpipe or interleaved in the name as that says.
        steps: Steps of each.
        shrink: Make the model small first: a layer for each stage and two at least, heads of width 8,
            64 tokens; the number of heads, the vocabulary and everything else stay as they are.
    """
    from groundup.verify.parallel import ALLOWED, parse_layout, verify_parallel

    run = run_config(config, overrides).value
    chosen = {name: parse_layout(name) for name in layouts}
    width = max(6, *map(len, layouts))
    print(f"{'layout':<{width}}  {'loss':>8}  {'gradient norm':>13}  {'allowed':>8}  verdict")
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        deviations = verify_parallel(
            run, chosen, Path(scratch), launch=_train_quietly, num_steps=steps, shrink=shrink
        )
        for found in deviations:
            verdict = found.error or ("right" if found.is_right else "WRONG")
            measured = f"{found.loss:>8.1e}  {found.grad_norm:>13.1e}  {ALLOWED:>8.0e}"
            print(f"{found.layout:<{width}}  {measured}  {verdict}", flush=True)
            if not found.is_right:
                wrong.append(found.layout)
    if wrong:
        raise TrainingError(f"not the same model as one process: {', '.join(wrong)}", where="layouts")


def resume(
    config: ConfigFile = None,
    *overrides: Override,
    steps: int = 6,
    shrink: bool = True,
) -> None:
    """Check that a run that is stopped and resumed does to the bit what it would have done otherwise.

    Trains a few steps of your own config and data, then the same again up to a checkpoint in the middle,
    from which a new process goes on: losses, final weights and optimizer state must be equal to the bit.
    Optimizer, schedule, precision, dropout, layout and the way of saving stay as they are. The exit code is
    1 where anything differs.

    For example:

        groundup verify resume run.yaml
        groundup verify resume run.yaml layout.dp=2 layout.zero=3 checkpoint.asynchronous=true --no-shrink

    Args:
        steps: Steps in all; the stop is after half of them.
        shrink: Make the model small first: two layers, heads of width 8, 64 tokens; the number of heads, the
            vocabulary and everything else stay as they are.
    """
    from groundup.verify.resume import verify_resume

    if steps < 2:
        raise ConfigError("needs 2 steps or more, to stop between them", where="--steps")
    run = run_config(config, overrides).value
    with tempfile.TemporaryDirectory() as scratch:
        found = verify_resume(run, Path(scratch), launch=_train_quietly, num_steps=steps, shrink=shrink)
    print(f"{'step':>4}  {'without a stop':>14}  {'resumed':>14}  verdict")
    for step, (one, other) in found.losses.items():
        verdict = "equal" if one == other else f"DIFFERS by {abs(one - other):.1e}"
        note = ", stopped after it" if step == found.stopped_after else ""
        print(f"{step:>4}  {one:>14.9f}  {other:>14.9f}  {verdict}{note}")
    for difference in found.differences[:8]:
        print(f"{difference.group} {difference.name}: {difference.describe()}")
    num_equal = found.num_tensors - len(found.differences)
    print(f"{num_equal} of {found.num_tensors} final tensors are equal to the bit")
    if not found.is_right:
        raise TrainingError(f"a run resumed after step {found.stopped_after} is another run", where="resume")


def convert(
    path: Path,
    *,
    scratch: Path | None = None,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
) -> None:
    """Check that a model stays the same in every format: logits, weights and optimizer's moments.

    Writes it as a Hugging Face folder (in one file, in shards, in bfloat16), as a native checkpoint and as
    Megatron-LM's with old and new names, split by tensors and layers where its sizes allow; reads each back
    and compares it with the original, its chat template and the like too. Then in a circle through all of
    them, after which the file of weights must be the same byte for byte; and, where transformers is
    installed, its own implementation's logits, of the export and of the source where that is a Hugging Face
    folder.
    Logits may differ by 1e-5 of the largest, weights by no bit. The exit code is 1 where anything does.

    For example:

        groundup verify convert runs/quickstart/model
        groundup verify convert checkpoints/gpt2_345m --tokenizer gpt2 --scratch /data/scratch

    Args:
        path: A run folder, checkpoint, Hugging Face folder or Megatron-LM's checkpoints.
        scratch: Folder for up to three copies of the model at a time; by default that of the system.
        tokenizer: Folder, file or name, where the model has none or another is meant.
        vocab_size: True vocabulary of a model of Megatron-LM's, where its tokenizer has fewer ids.
    """
    from groundup.checkpoint.formats import open_lazy
    from groundup.core.errors import CheckpointError
    from groundup.core.progress import Progress
    from groundup.verify.convert import verify_convert

    stored = open_lazy(
        path,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        moments=True,
    )
    if scratch is not None and not scratch.is_dir():
        raise ConfigError(f"{scratch} is no folder", where="--scratch", fix="Make it, or name another.")
    print(f"{'path':<{_PATH_WIDTH}}  {'logits':>7}  {'top-1':>6}  {'weights':>7}  verdict")
    wrong = []
    with (
        tempfile.TemporaryDirectory(dir=scratch, prefix="groundup-verify-") as folder,
        Progress(f"verify convert {path}", 0, "B") as progress,
    ):
        for found in verify_convert(stored, Path(folder), on_write=progress.add):
            logits = f"{found.parity.max_difference:.1e}" if found.parity else ""
            top1 = f"{found.parity.top1_agreement:.1%}" if found.parity else ""
            weights = {True: "equal", False: "DIFFER", None: ""}[found.bits_equal]
            verdict = found.omitted or ("right" if found.is_right else f"WRONG {found.problem}".rstrip())
            print(f"{found.path:<{_PATH_WIDTH}}  {logits:>7}  {top1:>6}  {weights:>7}  {verdict}", flush=True)
            if not found.is_right:
                wrong.append(found.path)
    if wrong:
        raise CheckpointError(
            f"not the same model after conversion: {'; '.join(wrong)}",
            where=path,
            fix="This is a fault of groundup: please report it with the model's config.",
        )


def serve(path: Path, *layouts: str, max_new_tokens: int = 16, model: ModelOptions = MODEL_AS_IT_IS) -> None:
    """Check that a model is served as it is: tokens and log-probabilities against plain forward passes.

    Completes a dozen prompts greedily, one by one, together in small chunks with a cache that is too small
    for all of them, and again with their beginnings known; each token must be the one that the model without
    a cache finds most probable, and log-probabilities may differ by 1e-4 nats (fp32). Where two tokens are as
    close as that, either is right, and is counted as a tie. Texts that are drawn must not depend on their
    company, beams must have the scores of their tokens, and each layout must write what one process writes;
    its ranks share this machine. The exit code is 1 where anything differs.

    For example:

        groundup verify serve runs/quickstart/model
        groundup verify serve gpt2 tp2 pp2 tp2-pp2

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of Megatron-LM.
        layouts: To compare with one process, e.g. tp2-pp2.
        max_new_tokens: Of each text.
    """
    from groundup.core.errors import CheckpointError
    from groundup.verify.serve import ALLOWED, layouts_to_serve, verify_serve

    if max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens is {max_new_tokens}, not 1 or more")
    chosen = layouts_to_serve(layouts)
    loaded = model.open(path)
    print(
        f"{'path':<{_PATH_WIDTH}}  {'texts':>5}  {'tokens':>6}  {'difference':>10}  {'allowed':>7}  verdict"
    )
    wrong = []
    with tempfile.TemporaryDirectory(prefix="groundup-verify-") as folder:

        def generate(layout: "Layout", file: Path) -> list[dict[str, Any]]:
            return _generate_quietly(path, layout, file, max_new_tokens, model)

        for found in verify_serve(
            loaded, chosen, Path(folder), max_new_tokens=max_new_tokens, generate=generate
        ):
            measured = "" if found.difference is None else f"{found.difference:.1e}"
            allowed = "" if found.difference is None else f"{ALLOWED:.0e}"
            ties = f", {found.num_ties} ties" if found.num_ties else ""
            verdict = f"right{ties}" if found.is_right else f"WRONG {found.error}".rstrip()
            counts = f"{found.num_texts:>5}  {found.num_tokens:>6}"
            print(
                f"{found.path:<{_PATH_WIDTH}}  {counts}  {measured:>10}  {allowed:>7}  {verdict}", flush=True
            )
            if not found.is_right:
                wrong.append(found.path)
    if wrong:
        raise CheckpointError(
            f"not what the model says: {'; '.join(wrong)}",
            where=path,
            fix="This is a fault of groundup: please report it with the model's config.",
        )


def _generate_quietly(
    path: Path, layout: "Layout", file: Path, max_new_tokens: int, model: ModelOptions
) -> list[dict[str, Any]]:
    """Completes a file of prompts over ranks of this machine; what they say is shown where they fail."""
    degrees = [f"layout.{name}={getattr(layout, name)}" for name in ("dp", "cp", "tp", "pp", "zero", "shard")]
    given = [word for word in degrees if word.split("=")[1] not in ("0", "1")]
    settings = ["--temperature", "0", "--max-new-tokens", str(max_new_tokens), "--logprobs", "0"]
    ema = ["--ema"] if model.ema else []
    words = ["generate", str(path), *given, "--file", str(file), *settings, "--device", model.device, *ema]
    done = subprocess.run(  # noqa: S603  # this same program
        [sys.executable, "-m", "groundup", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        logger.error("%s", done.stderr[-3000:])
    return [json.loads(line) for line in done.stdout.splitlines()] if not done.returncode else []


def _train_quietly(config: "TrainConfig", file: Path) -> int:
    """Trains on this machine; what the ranks say is shown where they fail."""
    done = subprocess.run(  # noqa: S603  # this same program
        [sys.executable, "-m", "groundup", "train", str(file)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        logger.error("%s", done.stderr[-3000:])
    return done.returncode
