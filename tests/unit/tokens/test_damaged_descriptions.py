"""What describes data may be damaged too: that ends in one sentence, never in a traceback."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.cli import corpus, tokenizer, tokens, tokens_files, tokens_plan
from groundup.cli.options import TokenizerOptions
from groundup.core.errors import GroundupError

SETTINGS = ("data.sequence_length=8", "data.split=8,1,1")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    texts = [f"text number {number} " * (number % 7 + 1) for number in range(40)]
    (folder / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    corpus.build(folder / "in.jsonl", out=folder / "corpus", workers=0)
    tokenizer.train(folder / "in.jsonl", out=folder / "tokenizer", vocab_size=270)
    tokens.build(
        folder / "in.jsonl",
        prefix=folder / "d",
        tokenizer=TokenizerOptions(tokenizer=Path("bytes")),
        workers=0,
    )
    return folder


def verbs(folder: Path) -> dict[str, Callable[[], None]]:
    source, data = folder / "in.jsonl", folder / "d_text_document"
    return {
        "verify": lambda: tokens_files.verify(data),
        "inspect": lambda: tokens_files.inspect(data),
        "trace": lambda: tokens_plan.trace(data, *SETTINGS, sample=1),
        "merge": lambda: tokens_files.merge(data, prefix=folder / "merged"),
        "build": lambda: tokens.build(
            source, prefix=folder / "d", tokenizer=TokenizerOptions(tokenizer=Path("bytes")), workers=0
        ),
        "corpus": lambda: corpus.build(source, out=folder / "corpus", workers=0),
        "tokenizer": lambda: tokenizer.inspect(str(folder / "tokenizer")),
    }


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A bit flipped, an end missing, or something behind it."""
    match draw.randrange(3):
        case 0:
            return content[: draw.randrange(len(content))]
        case 1:
            place = draw.randrange(len(content))
            return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    return content + b"behind"


def distorted(content: bytes, draw: random.Random) -> bytes:
    """Valid JSON with one value of another kind, or without it."""
    tree = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def gather(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            places.append((node, key))
            gather(child)

    gather(tree)
    node, key = draw.choice(places)
    if draw.random() < 0.3:
        del node[key]
    else:
        node[key] = draw.choice([None, -1, "x", [], {}, 1.5, 10**20])
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("name", "touched"),
    [
        ("d_text_document.bin", ("verify", "inspect")),
        ("d_text_document.idx", ("verify", "inspect", "trace", "merge", "build")),
        ("d_text_document.sources.npz", ("trace", "merge")),
        ("d_text_document.json", ("verify", "inspect", "trace", "merge", "build")),
        ("corpus/manifest.json", ("corpus",)),
        ("tokenizer/tokenizer.json", ("tokenizer",)),
    ],
)
def test_damage_never_ends_in_a_traceback(
    sound: Path, tmp_path: Path, name: str, touched: tuple[str, ...]
) -> None:
    draw = random.Random(name)
    content = (sound / name).read_bytes()
    refused = 0
    for number in range(40):
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        change = distorted if name.endswith(".json") and number % 2 else damaged
        (folder / name).write_bytes(change(content, draw))
        for verb in touched:
            try:
                verbs(folder)[verb]()
            except GroundupError:
                refused += 1
        shutil.rmtree(folder)
    assert refused or name == "corpus/manifest.json"  # that one is built anew, with a warning
