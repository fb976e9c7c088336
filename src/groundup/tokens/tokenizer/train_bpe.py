"""Trains a byte-level BPE vocabulary on text, as GPT-2's was trained."""

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial

from groundup.core.errors import ConfigError, DataError
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters
from groundup.tokens.tokenizer.bpe_merges import ranked_merges

_MIN_PAIR_COUNT = 2
_BYTES = 256
_TEXTS_AHEAD = 1024
_LOOK_SECONDS = 0.2
_SPARE_MERGES = 256  # learned besides, because a few may not suit tiktoken


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    end_of_document: str = "<|endoftext|>",
    fewer: bool = False,
) -> ByteLevelTokenizer:
    """Trains a vocabulary: 256 bytes, then merges in the order learned, the special token last.

    Memory grows with the number of different pieces (words), not with the text; the same texts give
    the same vocabulary.

    Args:
        texts: Documents.
        vocab_size: Number of ids wanted, bytes and special token included.
        end_of_document: Name of the special token, the last id.
        fewer: Accept fewer ids where the texts yield no more.

    Raises:
        ConfigError: No room for 256 bytes and the special token.
        DataError: The texts have too few different pairs for so many ids, and ``fewer`` is off.
    """
    if vocab_size < _BYTES + 1:
        raise ConfigError(
            f"{vocab_size} ids do not hold 256 bytes and {end_of_document}",
            where="--vocab-size",
            fix="Ask for at least 257.",
        )
    learned = _learn(texts, vocab_size - 1 + _SPARE_MERGES)
    merges = ranked_merges(learned, byte_characters())[: vocab_size - 1 - _BYTES]
    reached = _BYTES + len(merges) + 1
    if reached < vocab_size and not fewer:
        raise DataError(
            f"the text yields only {reached:,} ids (pairs that occur {_MIN_PAIR_COUNT} times or more),"
            f" {vocab_size:,} were asked for",
            where="--vocab-size",
            fix=f"Give more text or ask for {reached} or fewer.",
        )
    names = [*byte_characters(), *(left + right for left, right in merges)]
    bpe = ByteLevelBpe(
        vocab={name: number for number, name in enumerate(names)},
        merges=merges,
        specials={end_of_document: len(names)},
    )
    return ByteLevelTokenizer(bpe, end_of_document=end_of_document)


def _learn(texts: Iterable[str], num_tokens: int) -> list[tuple[str, str]]:
    """Returns the merges in the order learned."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=_MIN_PAIR_COUNT,
        initial_alphabet=list(byte_characters()),
        special_tokens=[],
        show_progress=False,
    )
    _in_a_thread(partial(tokenizer.train_from_iterator, trainer=trainer), texts)
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in learned]


def _in_a_thread(learn: Callable[[Iterator[str]], object], texts: Iterable[str]) -> None:
    """Trains in a thread on texts that are read here, so that Ctrl-C is handled while native code runs."""
    ahead: queue.Queue[str | None] = queue.Queue(_TEXTS_AHEAD)
    learning: Future[None] = Future()

    def work() -> None:
        try:
            learn(iter(ahead.get, None))
        except BaseException as error:  # raised again below
            learning.set_exception(error)
        else:
            learning.set_result(None)

    threading.Thread(target=work, name="tokenizer", daemon=True).start()
    try:
        for text in texts:
            _put(ahead, text, learning)
    except BaseException:
        _end(ahead)  # what waits for texts keeps the library's threads from whoever learns next
        raise
    _put(ahead, None, learning)
    while not learning.done():
        with contextlib.suppress(
            TimeoutError
        ):  # a wait without end is deaf to a signal that another thread got
            learning.exception(timeout=_LOOK_SECONDS)
    learning.result()


def _put(ahead: "queue.Queue[str | None]", text: str | None, learning: "Future[None]") -> None:
    """Passes a text on, unless the training thread has ended."""
    while not learning.done():
        try:
            return ahead.put(text, timeout=_LOOK_SECONDS)
        except queue.Full:
            continue


def _end(ahead: "queue.Queue[str | None]") -> None:
    """Signals the end of the texts."""
    with contextlib.suppress(queue.Empty):
        while True:
            ahead.get_nowait()
    ahead.put(None)
