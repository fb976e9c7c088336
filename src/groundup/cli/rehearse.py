"""``groundup rehearse``: the user's own run, shrunk, from a web site to a service."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from groundup.cli.options import ConfigFile, Override
from groundup.cli.run_config import run_config
from groundup.core.errors import ConfigError, DataError, TrainingError
from groundup.core.log import logger
from groundup.core.progress import human_seconds

if TYPE_CHECKING:
    from groundup.tokens.sampling.data_config import DataConfig
    from groundup.train.config import TrainConfig


def rehearse(
    config: ConfigFile = None,
    *overrides: Override,
    recipe: Path | None = None,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> None:
    """Rehearse your own run before it costs anything: every stage, small, on this machine, in minutes.

    Crawls 64 documents from a web site that it serves itself, cleans and deduplicates them, tokenizes them
    (with the tokenizer of the run's data, or one trained on the spot), trains a shrunken model under the
    run's own optimizer, schedule, precision and kinds of parallelism on processes of this machine, kills it,
    resumes it on another number of ranks, converts the model to a Hugging Face folder, evaluates it and
    serves it. Each stage is a command of groundup, and is shown. The exit code is 1 where one fails.

    For example:

        groundup rehearse run.yaml
        groundup rehearse preset=gpt2-345m run_dir=runs/a data.path=data/a layout.tp=2 -o rehearsal

    Args:
        recipe: Your recipe of a corpus (see `groundup corpus run`), in the place of a short one; it needs an
            import stage, which is given the crawled pages.
        out: The folder to work in, which stays: new or empty. By default a temporary one, which stays only
            after a failure.
    """
    from groundup.core.config import resolve
    from groundup.corpus.recipe import Recipe
    from groundup.rehearsal.rehearsal import CRAWLED, Rehearsal
    from groundup.rehearsal.shrink import differences

    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError("is not empty", where=f"--out {out}", fix="Name a new folder, or remove it.")
    if recipe is not None:
        resolve(Recipe, file=recipe, overrides=[CRAWLED])  # which refuses what is none
    run = run_config(config, overrides).value
    _require_possible(run)
    folder = out or Path(tempfile.mkdtemp(prefix="groundup-rehearsal-"))
    folder.mkdir(parents=True, exist_ok=True)
    _keep_tokenizer(run.data, folder / "tokenizer")
    rehearsal = Rehearsal(run, folder, recipe=recipe)
    print(f"In {folder}, which differs from the run in:")
    for difference in differences(run, rehearsal.config):
        print(f"  {difference}", flush=True)
    done, total = [], 0.0
    for stage in rehearsal.run():
        total += stage.seconds
        mark = "FAILED" if stage.error else "ok"
        print(f"\n[{mark}] {stage.name} ({human_seconds(stage.seconds)}): {stage.error or stage.found}")
        for command in stage.commands:
            print(f"  {command}", flush=True)
        done.append(stage)
    if done[-1].error:
        missing = [name for name in rehearsal.stages if name not in {stage.name for stage in done}]
        after = f"; not reached: {', '.join(missing)}" if missing else ""
        raise TrainingError(
            f"{done[-1].name} failed{after}", where="rehearse", fix=f"All is left in {folder}."
        )
    print(f"\nAll {len(done)} stages work, in {human_seconds(total)}.")
    if out is None:
        shutil.rmtree(folder)


def _require_possible(run: "TrainConfig") -> None:
    """Refuses a layout that only its small copy could have."""
    from groundup.parallel.validate import validate_layout

    validate_layout(
        run.layout,
        run.model,
        sequence_length=run.data.sequence_length,
        batch_sizes=run.batch_sizes.every,
        micro_batch_size=run.micro_batch_size,
        world_size=run.layout.num_ranks,
        is_fixed=False,
    )


def _keep_tokenizer(data: "DataConfig", folder: Path) -> None:
    """Saves the tokenizer of the run's data, where that is known already."""
    from groundup.tokens.sampling.splits import tokenizer_of_data

    try:
        tokenizer = tokenizer_of_data(data)
    except DataError as error:
        logger.info("the tokenizer of the run's data is not to be had, a small one is trained: %s", error)
        return
    tokenizer.save(folder)
