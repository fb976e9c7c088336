"""Folders that Hugging Face's libraries write: which of their files hold documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.core.files import read_json

ARROW_ENDING = ".arrow"
_INFO, _STATE, _DICT = "dataset_info.json", "state.json", "dataset_dict.json"
_CARD_BYTES = 1 << 16


def names_of_documents(folder: Path, names: Sequence[str]) -> list[str]:
    """The names without those that describe a dataset, or that only its library can make use of.

    A folder of ``Dataset.save_to_disk`` means the files that its ``state.json`` lists; beside other Arrow
    files, ``cache-*.arrow`` are left out; of a ``DatasetDict`` and of a repository, the descriptions.

    Raises:
        DataError: A file that a dataset lists is not there.
    """
    left_out: set[str] = set()
    if any(name.endswith(ARROW_ENDING) for name in names) or _STATE in names:
        if listed := _listed(folder / _STATE, names):
            return listed
        if _INFO in names:
            left_out |= {_INFO, _STATE, *(name for name in names if name.startswith("cache-"))}
    if _DICT in names and "splits" in _object(folder / _DICT):
        left_out.add(_DICT)
    if "README.md" in names and _is_card(folder / "README.md") and any(folder.rglob("*.parquet")):
        left_out |= {"README.md", "dataset_infos.json"}
    return [name for name in names if name not in left_out]


def _listed(state: Path, names: Sequence[str]) -> list[str]:
    """The files that a ``state.json`` lists; none where it is of something else."""
    files = _object(state).get("_data_files") if state.name in names else None
    if not isinstance(files, list):
        return []
    listed = [entry["filename"] for entry in files if isinstance(entry, dict) and "filename" in entry]
    if missing := [name for name in listed if name not in names]:
        raise DataError(
            f"the dataset lacks {len(missing)} of its {len(listed)} files: {', '.join(missing[:3])}",
            where=state,
            fix="Copy the whole folder that save_to_disk wrote.",
        )
    return listed


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except DataError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_card(path: Path) -> bool:
    """Whether a README begins as the card of a dataset does: with YAML between two lines of dashes."""
    with path.open("rb") as file:
        head = file.read(_CARD_BYTES)
    return head.startswith(b"---") and b"\n---" in head
