"""Exact duplicates: the same words in the same order, whatever the white space between them."""

import xxhash

_PIECE_CHARACTERS = 1 << 20
"""A long text is taken in pieces: its words as a list would need 15 times its size."""


def text_key(text: str) -> bytes:
    """The xxh3-128 (16 bytes) of the text with every run of white space made one blank.

    Two different texts among a billion share a key with a probability of about 1.5e-21 (n^2 / 2^129).
    """
    if len(text) <= _PIECE_CHARACTERS:
        return xxhash.xxh3_128_digest(" ".join(text.split()).encode())
    digest = xxhash.xxh3_128()
    blank = started = False  # whether white space, and whether a word, stands before this piece
    for start in range(0, len(text), _PIECE_CHARACTERS):
        piece = text[start : start + _PIECE_CHARACTERS]
        words = piece.split()
        if words:
            if started and (blank or piece[0].isspace()):
                digest.update(b" ")
            digest.update(" ".join(words).encode())
            started = True
            blank = piece[-1].isspace()
        else:
            blank = True
    return digest.digest()


class ExactDuplicates:
    """Remembers which texts it has seen; the first in input order is the one that stays.

    Memory: the 16-byte key of each distinct text in a set, about 100 bytes a document with what Python
    adds (10 million documents: 1 GB). Nothing of the text is kept.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def is_duplicate(self, text: str) -> bool:
        """Whether an equal text was asked about before; remembers this one."""
        key = text_key(text)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False
