"""Files of the repository outside docs/ that pages link to: they become pages of the site too."""

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = "benchmarks/results/"
"""Folder of the pages of results."""
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.DOTALL | re.MULTILINE)
_PICTURES = (".svg", ".png")
_LANGUAGES = {
    ".sh": "bash",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".py": "python",
    ".json": "json",
}
_INCLUDED = re.compile(r"^<!-- include (\S+?)#(.+?) -->$", re.MULTILINE)


def place_of(path: str) -> str:
    """Where a file or folder of the repository stands on the site, as the path of its page's Markdown."""
    inside = PurePosixPath(path)
    if inside.parts[:1] == ("docs",):
        place = str(inside.relative_to("docs"))
        return f"{place}/index.md" if (ROOT / path).is_dir() else place
    if path == "CONTRIBUTING.md":
        return "contributing.md"
    if path.startswith(BENCHMARKS):
        return f"benchmarks/{path.removeprefix(BENCHMARKS)}"
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    if inside.suffix in (".md", *_PICTURES):
        return f"repository/{path}"
    return f"repository/{path}.md"


def with_links(text: str, source: str, place: str) -> str:
    """A text whose links into the repository lead to where these files stand on the site.

    Args:
        text: Markdown.
        source: The file that it is of, from the repository's root: links are relative to it.
        place: The path of the page's Markdown.
    """

    def to_place(target: str) -> str:
        path, hash_mark, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return target
        found = _in_repository(source, path)
        if not (ROOT / found).exists():
            return target  # which MkDocs reports
        return os.path.relpath(place_of(found), PurePosixPath(place).parent) + hash_mark + anchor

    return change_links(text, to_place)


def change_links(text: str, change: Callable[[str], str]) -> str:
    """A text with other targets of its links; those in blocks of code stay."""

    def changed(part: str) -> str:
        return _LINK.sub(lambda one: f"{one[1]}{change(one[2])}{one[3]}", part)

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [changed(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, changed(text[end:])])


def linked(text: str, source: str) -> Iterator[str]:
    """Yields the files and folders that a text links to, from the repository's root."""
    for _, target, _ in _LINK.findall(_FENCE.sub("", text)):
        path = target.partition("#")[0]
        if path and "://" not in path and not path.startswith("mailto:"):
            yield _in_repository(source, path)


def with_sections(text: str, source: str) -> str:
    """A text in which ``<!-- include README.md#What works -->`` is that section of that file.

    Args:
        text: Markdown.
        source: The file that it is of, from the repository's root.
    """
    return _INCLUDED.sub(lambda found: _section(found[1], found[2], str(PurePosixPath(source).parent)), text)


def pages_beside(texts: Mapping[str, str]) -> dict[str, str | Path]:
    """Place -> Markdown, or a file to copy, of all outside docs/ that is linked to, and of benchmarks.

    Args:
        texts: Path from the repository's root -> Markdown, of the pages to begin with.
    """
    waiting = [str(path.relative_to(ROOT)) for path in sorted((ROOT / BENCHMARKS).glob("*.md"))]
    waiting += [path for source, text in texts.items() for path in linked(text, source)]
    waiting.append("CONTRIBUTING.md")
    made: dict[str, str | Path] = {}
    while waiting:
        path = waiting.pop(0)
        place = place_of(path)
        if place in made or path.split("/")[0] == "docs" or not (ROOT / path).exists():
            continue
        if path.endswith(_PICTURES):
            made[place] = ROOT / path
            continue
        text, source = _text_of(path)
        made[place] = with_links(text, source, place)
        waiting += linked(text, source)
    return made


def listed(folder: str) -> str:
    """A list of the pages of a folder by their titles, for the page of the folder itself."""
    paths = [path for path in sorted((ROOT / folder).glob("*.md")) if path.name != "index.md"]
    titles = [path.read_text().partition("\n")[0].removeprefix("# ") for path in paths]
    return "\n".join(f"- [{title}]({path.name})" for path, title in zip(paths, titles, strict=True))


@functools.cache
def _tracked() -> list[Path]:
    """The repository's own files: beside them may lie the data of benchmarks, and what was built."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)  # noqa: S603
    if listing.returncode == 0:
        return [ROOT / name for name in listing.stdout.split("\0") if name]
    # A copy without git has only these, and what begins with a dot.
    return [path for path in ROOT.rglob("*") if not path.relative_to(ROOT).parts[0].startswith(".")]


def _text_of(path: str) -> tuple[str, str]:
    """Markdown that shows a file or folder, and the file that its links are relative to."""
    file = ROOT / path
    if file.is_dir():
        readme = file / "README.md"
        head = readme.read_text() if readme.exists() else f"# {path}\n"
        names = {one.relative_to(file).parts[0] for one in _tracked() if one.is_relative_to(file)}
        inside = [file / name for name in sorted(names) if not name.startswith((".", "__", readme.name))]
        files = "\n".join(f"- [{one.name}]({one.name})" for one in inside)
        return f"{head}\n{files}\n", f"{path}/README.md"
    text = file.read_text()
    if file.suffix == ".md":
        return text, path
    fence = "`" * (max([2, *map(len, re.findall("`{3,}", text))]) + 1)
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {file.name}\n\n`{path}`\n\n{fence}{language}\n{text}{fence}\n", path


def _section(path: str, title: str, folder: str) -> str:
    """What stands below a heading of a file, with links as from a folder."""
    text = (ROOT / path).read_text()
    _, found, rest = text.partition(f"\n## {title}\n")
    if not found:
        raise ValueError(f"{path} has no section {title!r}")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()

    def from_folder(target: str) -> str:
        return target if "://" in target else os.path.relpath(_in_repository(path, target), folder)

    return change_links(section, from_folder)


def _in_repository(source: str, path: str) -> str:
    return os.path.normpath(PurePosixPath(source).parent / path)
