"""The configs that come with groundup."""

from importlib.resources import files
from pathlib import Path


def presets() -> dict[str, Path]:
    """Name -> YAML file."""
    folder = Path(str(files("groundup") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
