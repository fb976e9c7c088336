"""From Megatron-LM's flags of data and tokenizer to ours."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from groundup.core.config import from_dict
from groundup.core.errors import DataError
from groundup.core.files import atomic_folder
from groundup.megatron.parse_flags import Given
from groundup.megatron.setting_tree import Settings, refusal
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.splits import tokenizer_of_data
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer, tokenizer_folder

_TOKENIZER = "tokenizer"  # beside the tracker file, where conversions leave it too
_OF_MODEL_FILE = "--tokenizer-model, the model's file or folder"
_NEEDS = {
    "GPT2BPETokenizer": "--vocab-file and --merge-file",
    "HuggingFaceTokenizer": _OF_MODEL_FILE,
    "SentencePieceTokenizer": _OF_MODEL_FILE,
    "GPTSentencePieceTokenizer": _OF_MODEL_FILE,
    "Llama2Tokenizer": _OF_MODEL_FILE,
    "TikTokenizer": _OF_MODEL_FILE,
}


def put_data(settings: Settings, save: Path) -> Tokenizer:
    """Sets the data with its tokenizer, and whether there is validation; returns the tokenizer.

    Args:
        settings: With the flags.
        save: Of ``--save``; a tokenizer of two files that lie in no folder of their own is copied there.

    Raises:
        ConfigError: Flags are missing or contradict each other.
        DataError: The data or the tokenizer is not there.
    """
    given = settings.given
    if not given["seq_length"]:
        raise refusal("--seq-length is missing", "Give it, for example --seq-length 1024.")
    _put_paths(settings)
    _put_order(settings)
    resets = [given[f"reset_{what}"] for what in ("position_ids", "attention_mask")]
    if any(resets):
        if not all(resets):
            raise refusal(
                "--reset-position-ids and --reset-attention-mask go together here", "Give both, or none."
            )
        settings.put("data.mask_documents", True, "reset_attention_mask", "reset_position_ids")
    named = _named_tokenizer(given, save)
    if (known := _known_bare_ids(settings)) is not None:
        return known
    if named is not None:
        settings.put("data.tokenizer", named, "tokenizer_model", "vocab_file", "merge_file")
    data = from_dict(DataConfig, settings.tree["data"], where="pretrain_gpt")
    try:
        return tokenizer_of_data(data)
    except DataError as error:
        if named is not None or not str(error.where).endswith(".json"):
            raise
        needs = _NEEDS.get(given["tokenizer_type"] or "", " or ".join(dict.fromkeys(_NEEDS.values())))
        raise DataError(error.what, where=error.where, fix=f"Name the tokenizer: {needs}.") from None


def _put_order(settings: Settings) -> None:
    given = settings.given
    if given["dataloader_type"] == "cyclic":
        settings.put("data.order", "seeded", "dataloader_type")
        return
    blends = [settings.tree["data"].get(name, {}) for name in ("sources", "validation", "test")]
    without_weights = any(
        len(blend) > 1 and not all("weight" in one for one in blend.values()) for blend in blends
    )
    newer = given.generation == 2026 or without_weights  # which 2023 did not know
    settings.put("data.order", "megatron_core" if newer else "megatron", source=given.of_generation)


def _put_paths(settings: Settings) -> None:
    given = settings.given
    words = {
        "train": given["train_data_path"],
        "validation": given["valid_data_path"],
        "test": given["test_data_path"],
    }
    together = given["data_path"]
    if path := given["data_args_path"]:
        if together:
            raise refusal("--data-path and --data-args-path are both given", "Give one.")
        together = _words_in(Path(path))
    split = given["split"].replace(" ", "")
    if together:
        if any(words.values()):
            raise refusal("--data-path and paths of single splits are both given", "Give one kind.")
        _put_training(settings, together, "data_path", "data_args_path", "train_data")
    elif words["train"]:
        split = "1,0,0"  # all of it trains; the others have their own
        _put_training(settings, words["train"], "train_data_path")
        for part, flag in (("validation", "valid_data_path"), ("test", "test_data_path")):
            if words[part]:
                settings.put(f"data.{part}", dict(_sources(words[part])), flag)
    else:
        raise refusal("no data", "Give --data-path PREFIX, where PREFIX.bin and PREFIX.idx are.")
    settings.put("data.split", split, "train_data_path" if words["train"] else "split")


def has_validation(settings: Settings) -> bool:
    """Whether any of the data is for validation."""
    shares = settings.tree["data"]["split"].replace("/", ",").split(",")
    return "validation" in settings.tree["data"] or (len(shares) > 1 and float(shares[1] or 0) > 0)


def _put_training(settings: Settings, words: Sequence[str], *names: str) -> None:
    if len(words) == 1:
        settings.put("data.path", words[0], *names)
    else:
        settings.put("data.sources", dict(_sources(words)), *names)


def _sources(words: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sources with names of their own: of weights and prefixes in turn, or of prefixes alone."""
    weights = [_number(word) for word in words[::2]]
    if len(words) % 2 == 0 and None not in weights:
        pairs: list[tuple[str, dict[str, Any]]] = [
            (path, {"path": path, "weight": weight})
            for weight, path in zip(weights, words[1::2], strict=True)
        ]
    else:
        if None not in weights:
            raise refusal(f"{' '.join(words)}: weights and prefixes in turn end with a weight")
        pairs = [(path, {"path": path}) for path in words]
    names: set[str] = set()
    for path, source in pairs:
        stem = Path(path).name.replace(".", "_")
        name = next(
            name for name in (stem, *(f"{stem}_{count}" for count in range(2, 10**6))) if name not in names
        )
        names.add(name)
        yield name, source


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _words_in(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read ({error})", where=f"--data-args-path {path}") from None


def _named_tokenizer(given: Given, save: Path) -> Path | None:
    """What ``data.tokenizer`` is to name; None where no flag does."""
    if given["tokenizer_type"] == "NullTokenizer":
        if not given["vocab_size"]:
            raise refusal("--tokenizer-type NullTokenizer wants --vocab-size", "Give it.")
        newer = given.generation == 2026
        return Path(f"none:{given['vocab_size'] + (0 if newer else 1)}")  # once without the end of a document
    if model := given["tokenizer_model"]:
        return Path(model)
    match given["vocab_file"], given["merge_file"]:
        case None, None:
            return None
        case str(vocab), str(merges):
            return _folder_of(Path(vocab), Path(merges), save)
    raise refusal("--vocab-file and --merge-file go together", "Give both.")


def _known_bare_ids(settings: Settings) -> Tokenizer | None:
    """The NullTokenizer that the data's own manifest tells: with or without the end of a document's id."""
    given = settings.given
    if given["tokenizer_type"] != "NullTokenizer":
        return None
    try:
        found = tokenizer_of_data(from_dict(DataConfig, settings.tree["data"], where="pretrain_gpt"))
    except DataError:  # Megatron-LM's own data has no manifest
        return None
    return found if found.vocab_size - given["vocab_size"] in (0, 1) else None


def _folder_of(vocab_file: Path, merge_file: Path, save: Path) -> Path:
    """The folder that holds these two files and no other tokenizer; a copy where there is none."""
    tokenizer = load_gpt2_files(vocab_file, merge_file)
    beside = vocab_file.parent
    for folder in (beside, save / _TOKENIZER):
        if tokenizer_folder(folder) and load_tokenizer(folder).fingerprint == tokenizer.fingerprint:
            return folder
    folder = save / _TOKENIZER
    if folder.exists():
        raise refusal(
            f"{folder} holds another tokenizer than {vocab_file} and {merge_file}", "Name another --save."
        )
    try:
        with atomic_folder(folder) as temporary:
            tokenizer.save(temporary)
    except OSError:
        if not folder.exists():  # another rank was quicker
            raise
    return folder
