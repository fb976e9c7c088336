"""``groundup train``, and what fine-tuning shares with it."""

import contextlib
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from groundup.cli.options import ConfigFile, Override
from groundup.cli.run_config import OF_TOKENIZER, run_config
from groundup.core.errors import ConfigError, GroundupError

if TYPE_CHECKING:
    from groundup.core.config import Resolved
    from groundup.tokens.sampling.collate import Evaluation
    from groundup.train.config import TrainConfig
    from groundup.train.run_data import Split
    from groundup.train.setup import Run

_RANKS = "ranks"
_LOG = "train.log"
_DOING = "training"

PrintConfig = Annotated[
    bool,
    Parameter(negative="", help="Print each setting, with where its value comes from, and stop."),
]
MaxRestarts = Annotated[
    int,
    Parameter(
        validator=validators.Number(gte=0),
        help="After a failure, continue from the newest sound checkpoint, so many times at most; not after a"
        " mistake in the config or the data, nor when the same step fails twice in the same way.",
    ),
]

DeepSpeed = Annotated[
    Path | None,
    Parameter(help="DeepSpeed's JSON config: it wins over the file, and overrides win over it."),
]


def train(
    config: ConfigFile = None,
    *overrides: Override,
    deepspeed: DeepSpeed = None,
    print_config: PrintConfig = False,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a model, or continue a run from its newest sound checkpoint.

    A config is a YAML file, dotted overrides, or both; `preset: gpt2-124m` (also gpt2-345m, gpt2-774m,
    gpt2-1558m, codeparrot-110m, small, tiny) in either gives everything a value but `run_dir` and
    `data.path`; the vocabulary is then that of the data's tokenizer.

    The run folder receives the resolved config, metrics.jsonl, a log and the checkpoints. Ctrl-C saves
    and stops; the same command continues.

    A layout of several ranks starts them on this machine, unless torchrun or Slurm's srun has.

    For example:

        groundup train run.yaml optimizer.lr=3e-4 num_steps=2000

        groundup train preset=tiny run_dir=runs/a data.path=data/code_text_document

        groundup train run.yaml layout.dp=2 layout.tp=2 --max-restarts 3

        groundup train run.yaml --deepspeed ds_config.json
    """
    resolved = run_config(config, overrides, deepspeed=deepspeed)
    if print_config:
        print(resolved.render())
    else:
        words = [*([str(config)] if config else []), *overrides]
        words += ["--deepspeed", str(deepspeed)] if deepspeed else []
        train_resolved(resolved, max_restarts, ["train", *words])


def train_resolved(resolved: "Resolved[TrainConfig]", max_restarts: int, arguments: Sequence[str]) -> None:
    """Trains as one process, as one of several ranks, or starts those.

    Args:
        resolved: The run.
        max_restarts: As ``--max-restarts`` of ``groundup train``.
        arguments: The verb and its arguments with which the ranks that are started find the same config.
    """
    from groundup.cli.task_scores import task_scorer
    from groundup.core.files import require_writable
    from groundup.core.log import logger
    from groundup.launch.env import is_torchrun_worker, launcher_pipe, rank_from_env
    from groundup.launch.rank_log import prefix_log_lines

    written = {
        "run_dir": resolved.value.run_dir,
        "log.tensorboard_dir": resolved.value.log.tensorboard_dir,
        "checkpoint.megatron.path": resolved.value.checkpoint.megatron.path,
    }
    for setting, folder in written.items():
        if folder is not None:
            require_writable(folder, where=setting)
    task_scorer(resolved.value)  # which refuses tasks that cannot be
    rank = rank_from_env()
    if launcher_pipe() is None:
        is_alone = rank is None and not is_torchrun_worker()
        if is_alone and (resolved.value.layout.num_ranks > 1 or max_restarts):
            raise SystemExit(_run_ranks(resolved.value, max_restarts, arguments))
        if max_restarts:
            raise ConfigError(
                "these ranks were started by torchrun or srun, which alone can start them again",
                where="--max-restarts",
                fix="Leave it out: give it to torchrun, or repeat srun as deploy/slurm/train.sbatch does.",
            )
    if rank is not None:
        prefix_log_lines(rank.rank)
    vocabulary = resolved.origins.get("model.vocab_size", "")
    if vocabulary.startswith(OF_TOKENIZER):
        logger.info("model.vocab_size is %d, from %s", resolved.value.model.vocab_size, vocabulary)
    results = run_training(resolved.value, resolved.origins)
    if rank is not None and rank.rank > 0:
        return
    for name, evaluation in results.items():
        if evaluation.figures:
            print(f"{name}: {evaluation.describe()}")
            continue
        print(
            f"{name}: loss {evaluation.loss:.4f}, perplexity {evaluation.perplexity:.2f},"
            f" {evaluation.bits_per_byte:.4f} bits per byte"
        )
    run_dir = shlex.quote(str(resolved.value.run_dir))
    if resolved.value.learning().encode_prompt:
        print(f"Next: groundup serve {run_dir}")
    else:
        print(f"Next: groundup generate {run_dir} --prompt '...'")


def _run_ranks(config: "TrainConfig", max_restarts: int, arguments: Sequence[str]) -> int:
    from groundup.core.folder_lock import locked_folder
    from groundup.core.log import also_to_file
    from groundup.launch.launcher import run_ranks
    from groundup.parallel.validate import validate_layout
    from groundup.train.signals import remove_unfinished

    world_size = config.layout.num_ranks
    validate_layout(  # once, before anything starts
        config.layout,
        config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=config.batch_sizes.every,
        micro_batch_size=config.micro_batch_size,
        world_size=world_size,
        is_fixed=False,
    )
    debug = ["--debug"] if "--debug" in sys.argv else []
    with locked_folder(config.run_dir, doing=_DOING), also_to_file(config.run_dir / _LOG):
        code = run_ranks(
            world_size,
            [*arguments, *debug],
            modules=["groundup.train.loop"],
            folder=config.run_dir / _RANKS,
            max_restarts=max_restarts,
            newest_step=_newest_step(config) if max_restarts else lambda: 0,
        )
        remove_unfinished(config.run_dir)  # of ranks that were killed
    return code


def _newest_step(config: "TrainConfig") -> Callable[[], int]:
    """Returns a function that tells the step which a run would continue from; 0 for the beginning."""
    from groundup.checkpoint.native.folder import find_newest, step_of
    from groundup.tokens.sampling.splits import tokenizer_of_data

    checkpoints = config.run_dir / "checkpoints"

    def newest_step() -> int:
        if not checkpoints.is_dir():
            return 0
        newest, _ = find_newest(checkpoints, tokenizer=tokenizer_of_data(config.data).fingerprint)
        return step_of(newest) if newest else 0

    return newest_step


def run_training(
    config: "TrainConfig", origins: Mapping[str, str] = types.MappingProxyType({})
) -> "dict[str, Evaluation]":
    """Trains with groundup's own evaluation and generation; returns the evaluation of each split.

    Args:
        config: The run.
        origins: Where its settings come from, for its report.
    """
    from groundup.cli.task_scores import task_scorer
    from groundup.core.log import also_to_file
    from groundup.launch.heartbeat import HeartbeatWriter
    from groundup.launch.watchdog import watchdog
    from groundup.parallel.mesh import leave_distributed
    from groundup.train.loop import train as run_loop

    def write_report() -> None:
        from groundup.report.run_page import write_report_of_training

        write_report_of_training(config, origins)

    with _own_run(config.run_dir), also_to_file(config.run_dir / _LOG), _reported(config, write_report):
        heartbeat = HeartbeatWriter.from_env()
        with watchdog(config.watchdog, heartbeat):
            results = run_loop(
                config,
                evaluate=evaluate,
                complete=complete,
                score_tasks=task_scorer(config),
                learning=config.learning(),
                heartbeat=heartbeat,
                write_report=write_report,
            )
        leave_distributed()  # only in success: after a failure it would wait for ranks that are gone
        return results


@contextlib.contextmanager
def _reported(config: "TrainConfig", write_report: Callable[[], None]) -> Iterator[None]:
    """Writes the report of a run that ends, is stopped or fails while entered, on its first rank."""
    from groundup.launch.env import rank_from_env

    rank = rank_from_env()
    reports = config.log.report != "never" and (rank is None or rank.rank == 0)
    try:
        yield
    except GroundupError:
        if reports and (config.run_dir / "metrics.jsonl").is_file():
            write_report()
        raise
    if reports:
        write_report()


@contextlib.contextmanager
def _own_run(run_dir: Path) -> Iterator[None]:
    """Holds the run folder while entered, once for all ranks; removes what this rank left there before."""
    from groundup.core.folder_lock import locked_folder, require_unlocked
    from groundup.launch.env import adopt, is_torchrun_worker, launch_id, launcher_pipe, rank_from_env
    from groundup.launch.errors import clear_own

    with contextlib.ExitStack() as stack:
        if launcher_pipe() is None:  # which holds it
            rank = rank_from_env()
            if rank is None or rank.rank == 0:
                stack.enter_context(locked_folder(run_dir, doing=_DOING, launch=launch_id()))
            else:
                require_unlocked(run_dir, launch=launch_id())
            if rank is not None or is_torchrun_worker():
                folder = run_dir.absolute() / _RANKS
                clear_own(folder, rank.rank if rank else 0)
                adopt(rank, folder)
        yield


def evaluate(run: "Run", split: "Split", num_batches: int) -> "Evaluation":
    """Measures the loss over the first ``num_batches`` micro-batches of a split in file order; 0 for all."""
    import torch

    from groundup.eval.perplexity import token_byte_lengths
    from groundup.train.validation import evaluate_split

    byte_lengths = torch.from_numpy(token_byte_lengths(run.tokenizer))
    return evaluate_split(run, split, num_batches, byte_lengths=byte_lengths)


def complete(run: "Run") -> list[str]:
    """Completes each of ``config.sample.texts``."""
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.cli.completion import prompt_ids
    from groundup.inference.engine import Engine
    from groundup.inference.sampler import Sampling

    config = run.config.sample
    loaded = LoadedModel(
        config=run.config.model,
        model=run.state.model,
        tokenizer=run.tokenizer,
        source=run.config.run_dir,
        bos_ids=run.state.bos_ids,
        companions=run.state.companions,
    )
    encode = run.learning.encode_prompt
    generations = Engine(loaded).generate(
        [encode(run, text) if encode else prompt_ids(loaded, text) for text in config.texts],
        sampling=Sampling(temperature=config.temperature),
        max_new_tokens=config.max_new_tokens,
        stop_ids=loaded.stop_ids,
    )
    return [generation.text for generation in generations]
