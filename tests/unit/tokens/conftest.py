"""Small tokenizers, and the files that Megatron-LM wrote."""

from pathlib import Path

import pytest

from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.train_bpe import train_tokenizer

_TEXTS = ["the cat sat on the mat, and the dog ate the cat's hat. ", "naïve café — 你好世界\n\n\tdone  "] * 20


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Enough to learn 44 merges or more."""
    return list(_TEXTS)


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    """Bytes, 34 merges and <|endoftext|>."""
    return train_tokenizer(_TEXTS, vocab_size=291)


@pytest.fixture(scope="session")
def gpt2(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "gpt2")


@pytest.fixture(scope="session")
def megatron(shared_data: Path) -> Path:
    """What Megatron-LM itself wrote."""
    folder = shared_data.parent / "reference" / "megatron"
    if not folder.is_dir():
        pytest.skip(f"no reference files at {folder}")
    return folder
