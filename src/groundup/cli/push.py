"""``groundup push``: a model to the Hugging Face hub."""

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from groundup.checkpoint.peft_settings import ADAPTER
from groundup.cli.card_options import NO_CARD_FLAGS, CardFlags
from groundup.cli.options import Switch
from groundup.cli.printing import human_bytes
from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    from groundup.checkpoint.hub import HubFile

_STAGED = ".hub_upload"


def push(
    path: Path,
    url: str,
    *,
    private: Switch = False,
    revision: str = "",
    dry_run: Switch = False,
    adapter_only: Switch = False,
    dtype: Literal["source", "float32", "bfloat16", "float16"] = "source",
    shards: str = "1",
    card: CardFlags = NO_CARD_FLAGS,
) -> None:
    """Upload a model to the Hugging Face hub: a run, a checkpoint, or a Hugging Face folder.

    A Hugging Face folder, or one with an adapter of PEFT, goes as it is. Anything else is converted first,
    as by `groundup convert --to hf`, with a model card (README.md) of what its records tell, in a folder
    beside it that is removed afterwards. The repository is made where it is missing. All files
    become visible together; an upload that was interrupted goes on, and one that changes nothing sends
    nothing. Weights of an earlier upload that this one lacks are removed in the same commit.

    The token is taken from where `hf auth login` keeps it, or from HF_TOKEN; HF_ENDPOINT names another hub.

    For example:

        groundup push runs/chat hf://me/small-chat --dry-run

        groundup push runs/chat hf://me/small-chat --private --license apache-2.0 --language en

        groundup push runs/lora hf://me/small-lora --adapter-only --base-model them/base

        groundup push exported hf://me/small --revision bf16

    Args:
        path: A run, one of its checkpoints, or a folder that `groundup convert --to hf` or others wrote.
        url: Where to: hf://user/name.
        private: Only its owners see a repository that is made; one that is there stays as it is.
        revision: Branch of the repository, made where it is missing; by default its main one.
        dry_run: List the files and their sizes, and send nothing; needs neither token nor network.
        adapter_only: Of a run that trained an adapter, upload that alone, as PEFT reads it.
        dtype: Of the weights, where they are converted.
        shards: Files of the weights, where they are converted: how many, or their largest size, like 5GB.
    """
    from groundup.checkpoint.formats import detect_format
    from groundup.checkpoint.hub import files_of, has_card, push_folder, repository_of, require_token
    from groundup.core.log import logger

    repository = repository_of(url)
    as_it_is = (path / ADAPTER).is_file() or detect_format(path).name == "hf"
    if not dry_run:
        require_token(repository)
    with contextlib.ExitStack() as stack:
        folder = path
        if as_it_is:
            _require_unchanged(path, card, dtype=dtype, shards=shards, adapter_only=adapter_only)
        else:
            folder = stack.enter_context(_converted(path, repository, adapter_only, dtype, shards, card))
        files = files_of(folder)
        if not has_card(files):
            logger.warning("%s has no model card: what README.md says is what others know of it", folder)
        if dry_run:
            _list(files)
            branch = f", branch {revision}" if revision else ""
            print(f"Nothing was sent. Without --dry-run these go to {url}{branch}.")
            return
        with _second_interrupt_ends():
            pushed = push_folder(folder, repository, private=private, revision=revision)
    said = "made" if pushed.created else "changed" if pushed.changed else "had all of it already"
    size = human_bytes(sum(file.bytes for file in files))
    print(f"{pushed.url}: {said}; {len(files)} files, {size}, commit {pushed.commit[:12]}")


def _require_unchanged(path: Path, card: CardFlags, *, dtype: str, shards: str, adapter_only: bool) -> None:
    flags = {"--dtype": dtype != "source", "--shards": shards != "1", "--adapter-only": adapter_only}
    if given := [*card.given[:1], *(flag for flag, is_given in flags.items() if is_given)]:
        raise ConfigError(
            f"{given[0]} is for what is converted, and {path} goes as it is",
            where="command line",
            fix="Write it anew with `groundup convert`, and push that.",
        )


@contextlib.contextmanager
def _converted(
    path: Path,
    repository: str,
    adapter_only: bool,
    dtype: Literal["source", "float32", "bfloat16", "float16"],
    shards: str,
    card: CardFlags,
) -> Iterator[Path]:
    """A folder that the model is written to for the time of the upload."""
    from groundup.checkpoint.formats import format_named
    from groundup.cli.convert import write_adapter, write_model

    if adapter_only and not card.base_model:
        raise ConfigError(
            "an adapter must name its base on the hub",
            where="--adapter-only",
            fix="Add --base-model user/name.",
        )
    card = card.with_name(repository)
    place = path.absolute()
    staged = place.with_name(f".{place.name}{_STAGED}")  # within the model it could not be
    words = ["convert", str(path), repository.rpartition("/")[2], "--to", "hf"]
    try:
        if adapter_only:
            write_adapter(path, staged, "hf", card=card, words=[*words, "--adapter-only"])
        else:
            words += ["--dtype", dtype] if dtype != "source" else []
            words += ["--shards", shards] if shards != "1" else []
            write_model(
                path, staged, format_named("hf"), {"shards": shards}, dtype=dtype, card=card, words=words
            )
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextlib.contextmanager
def _second_interrupt_ends() -> Iterator[None]:
    """Lets Ctrl-C end at once where the first one waits for large files that are under way."""
    from groundup.core.log import logger

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        logger.warning("stopping when the files under way have arrived; Ctrl-C again stops at once")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _list(files: "list[HubFile]") -> None:
    width = max(len(file.name) for file in files)
    for file in files:
        print(f"{file.name:<{width}}  {human_bytes(file.bytes):>8}")
    print(f"{f'{len(files)} files':<{width}}  {human_bytes(sum(file.bytes for file in files)):>8}")
