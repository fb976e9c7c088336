"""Flags that several verbs share."""

from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import ConfigError
from groundup.corpus.bad_records import Action, BadRecordPolicy
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer


def chosen_tokenizer(
    tokenizer: Path | None,
    vocab_file: Path | None = None,
    merge_file: Path | None = None,
    tokenizer_model: Path | None = None,
) -> Tokenizer:
    """The tokenizer that the flags name.

    Args:
        tokenizer: Folder, file or name: whatever ``load_tokenizer`` reads.
        vocab_file: GPT-2's vocabulary, with ``merge_file``.
        merge_file: GPT-2's merges, with ``vocab_file``.
        tokenizer_model: Megatron-LM's flag for a ``tokenizer.model``.

    Raises:
        ConfigError: None, several, or half of one is given.
        DataError: What is named is missing or malformed.
        MachineError: A download failed, or a library is not installed.
    """
    match (tokenizer, vocab_file, merge_file, tokenizer_model):
        case (Path(), None, None, None):
            return load_tokenizer(tokenizer)
        case (None, Path(), Path(), None):
            return load_gpt2_files(vocab_file, merge_file)
        case (None, None, None, Path()):
            return load_tokenizer(tokenizer_model)
    flags = {
        "--tokenizer": tokenizer,
        "--vocab-file": vocab_file,
        "--merge-file": merge_file,
        "--tokenizer-model": tokenizer_model,
    }
    given = " and ".join(flag for flag, value in flags.items() if value is not None)
    raise ConfigError(
        f"which tokenizer: {given} given" if given else "which tokenizer: none given",
        where="command line",
        fix="Give a folder, file or name (--tokenizer gpt2), or --vocab-file together with --merge-file, or"
        " --tokenizer-model.",
    )


def named_tokenizer(
    tokenizer: Path | None, vocab_file: Path | None, merge_file: Path | None, tokenizer_model: Path | None
) -> Tokenizer | None:
    """The tokenizer that the flags name; None where they name none."""
    if tokenizer is None and vocab_file is None and merge_file is None and tokenizer_model is None:
        return None
    return chosen_tokenizer(tokenizer, vocab_file, merge_file, tokenizer_model)


def tokenizer_and_words(
    words: Sequence[str],
    tokenizer: Path | None,
    vocab_file: Path | None,
    merge_file: Path | None,
    tokenizer_model: Path | None,
) -> tuple[Tokenizer, list[str]]:
    """The tokenizer and the other words of a command line whose first word names it, unless a flag does.

    Raises:
        ConfigError, DataError, MachineError: As ``chosen_tokenizer``.
    """
    rest = list(words)
    if rest and not (tokenizer or vocab_file or merge_file or tokenizer_model):
        tokenizer = Path(rest.pop(0))
    return chosen_tokenizer(tokenizer, vocab_file, merge_file, tokenizer_model), rest


def chosen_policy(action: Action, max_bad: float) -> BadRecordPolicy:
    """The policy that ``--bad-records`` and ``--max-bad`` name.

    Raises:
        ConfigError: ``--max-bad`` is no share.
    """
    if not 0 <= max_bad <= 1:
        raise ConfigError(
            f"{max_bad:g} is no share of the records", where="--max-bad", fix="Give a number from 0 to 1."
        )
    return BadRecordPolicy(action=action, max_bad=max_bad)
