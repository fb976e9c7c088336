"""Uploads Hugging Face folders to the hub, through ``huggingface_hub`` (extra ``[hub]``).

Large files go by the hub's own protocols (Xet, or LFS without ``hf_xet``), which send what is not there yet;
the files become visible together, in a commit. So an upload that was interrupted continues, and one that
changes nothing sends nothing.
"""

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.checkpoint.export import CARD, MANIFEST
from groundup.checkpoint.peft_settings import ADAPTER
from groundup.core.errors import CheckpointError, ConfigError, MachineError
from groundup.core.files import read_json

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

SCHEME = "hf://"
_PART = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?")
_LONGEST = 96
_WEIGHTS = (
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
)
"""Of an earlier upload: those that the new one lacks are removed with it, so that no two models mix."""
_SAME_AGAIN = "The same command goes on where this one stopped."


@dataclasses.dataclass(frozen=True, slots=True)
class HubFile:
    """A file that is uploaded: its name in the repository, and its size."""

    name: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pushed:
    """What came of an upload.

    Attributes:
        url: Of the repository.
        created: Whether it was made for this.
        commit: The newest one.
        changed: Whether that is of this upload; otherwise all was there already.
    """

    url: str
    created: bool
    commit: str
    changed: bool


def repository_of(url: str) -> str:
    """The ``user/name`` of ``hf://user/name``.

    Raises:
        ConfigError: It is no such URL, or has a name that the hub does not allow.
    """
    name = url.removeprefix(SCHEME).removesuffix("/")
    parts = name.split("/")
    problem = ""
    if not url.startswith(SCHEME) or len(parts) != 2:
        problem = "is not of the form hf://user/name"
    elif len(name) > _LONGEST:
        problem = f"has a name of {len(name)} characters, more than {_LONGEST}"
    elif not all(_PART.fullmatch(part) for part in parts) or "--" in name or ".." in name:
        problem = "has a name with other characters than letters, digits, '-', '_' and '.', or '--' or '..'"
    elif name.endswith(".git"):
        problem = "ends in .git"
    if problem:
        raise ConfigError(problem, where=url, fix="Write hf://your-name/name-of-the-model.")
    return name


def files_of(folder: Path) -> list[HubFile]:
    """The files of a model's or an adapter's folder that are uploaded: neither hidden ones nor our manifest.

    Raises:
        CheckpointError: It holds neither a model nor an adapter.
        ConfigError: It is an adapter that names its base by a folder of this machine.
    """
    if not (folder / "config.json").is_file() and not (folder / ADAPTER).is_file():
        raise CheckpointError("holds neither a Hugging Face model nor an adapter of PEFT", where=folder)
    if (folder / ADAPTER).is_file():
        settings = read_json(folder / ADAPTER)
        base = str(settings.get("base_model_name_or_path") or "") if isinstance(settings, dict) else ""
        if len(Path(base).parts) != 2 or Path(base).is_absolute() or Path(base).exists():
            raise ConfigError(
                f"names its base by a folder of this machine ({base}), where nobody else finds it",
                where=folder / ADAPTER,
                fix="Write it with the base's name on the hub: groundup convert RUN OUT --to hf"
                " --adapter-only --base-model user/name.",
            )
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.name != MANIFEST and not any(part.startswith(".") for part in name.parts):
            found.append(HubFile(name.as_posix(), path.stat().st_size))
    return found


def has_card(files: Sequence[HubFile]) -> bool:
    """Whether a model card is among the files."""
    return any(file.name == CARD for file in files)


def require_token(repository: str) -> None:
    """Refuses to go on without a token.

    Raises:
        MachineError: There is none in the usual places.
    """
    from huggingface_hub import constants, get_token

    if get_token() is None:
        raise MachineError(
            "there is no token for the hub on this machine",
            where=repository,
            fix=f"Make one that may write at {constants.ENDPOINT}/settings/tokens, then type `hf auth login`,"
            " or set HF_TOKEN.",
        )


def push_folder(folder: Path, repository: str, *, private: bool = False, revision: str = "") -> Pushed:
    """Uploads a folder to a repository of models, which is made where it is missing.

    Args:
        folder: As ``files_of`` takes it.
        repository: ``user/name``.
        private: Only its owners may see a repository that is made for this; one that is there stays as it is.
        revision: A branch, made where it is missing; empty for the main one.

    Raises:
        CheckpointError, ConfigError: As ``files_of``; also where the hub refuses the model card.
        MachineError: There is no token, it has no right, or the hub cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    files = files_of(folder)
    api = huggingface_hub.HfApi(library_name="groundup")
    require_token(repository)
    if not sys.stderr.isatty():
        disable_progress_bars()
    with _told(repository, api.endpoint):
        created = _prepare(api, repository, private=private, revision=revision)
        before = api.repo_info(repository, revision=revision or None).sha
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision or None,
            commit_message="Upload a model with groundup",
            allow_patterns=[_literal(file.name) for file in files],
            delete_patterns=list(_WEIGHTS),
        ).oid
    return Pushed(f"{api.endpoint}/{repository}", created, commit, commit != before)


def _prepare(api: "HfApi", repository: str, *, private: bool, revision: str) -> bool:
    """Makes repository and branch where they are missing; returns whether the repository was."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    created = False
    try:
        api.repo_info(repository)
    except RepositoryNotFoundError:
        api.create_repo(repository, private=private or None)
        created = True
    if revision:
        try:
            api.repo_info(repository, revision=revision)
        except RevisionNotFoundError:
            api.create_branch(repository, branch=revision)
    return created


@contextlib.contextmanager
def _told(repository: str, endpoint: str) -> Iterator[None]:
    """Turns what the hub's library raises into errors that say what to do."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # httpx of version 1, httpx2 of version 2: the base of all that goes wrong on the way to the hub
    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        yield
    except OfflineModeIsEnabled:
        raise MachineError(
            "HF_HUB_OFFLINE is set, so nothing is sent", where=repository, fix="Unset it."
        ) from None
    except ValueError as error:  # the metadata of the card; HfHubHTTPError of status 400 is one too
        if isinstance(error, HfHubHTTPError):
            raise _refusal(error, repository, endpoint) from error
        raise ConfigError(f"the hub refuses the upload: {_line(error)}", where=repository) from error
    except (network_error, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, HfHubHTTPError):
            raise _refusal(cause, repository, endpoint) from error
        raise MachineError(
            f"the way to {endpoint} is interrupted ({_line(cause or error)})",
            where=repository,
            fix=f"Check the network and HF_ENDPOINT. {_SAME_AGAIN}",
        ) from error


def _refusal(error: "HfHubHTTPError", repository: str, endpoint: str) -> MachineError:
    status = error.response.status_code
    said = error.server_message or _line(error)
    tokens = f"{endpoint}/settings/tokens"
    what, fix = f"the hub answered with status {status} ({said})", f"Try again later. {_SAME_AGAIN}"
    if status == 401:
        what = f"the hub does not take the token ({said})"
        fix = f"Make another at {tokens}, and type `hf auth login` or set HF_TOKEN."
    elif status == 403:
        what = f"the token has no right to write there ({said})"
        fix = f"Give it that right at {tokens}, or name a repository of your own."
    elif status == 404:
        what, fix = f"the hub knows no such place ({said})", "Check user and name, and the branch."
    elif status in (400, 409, 413, 422):
        fix = "Mend that, and try again."
    return MachineError(what, where=repository, fix=fix)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _literal(name: str) -> str:
    """A pattern that matches this name alone."""
    return re.sub(r"([*?[])", r"[\1]", name)
