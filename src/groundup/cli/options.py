"""Flags that several verbs share; a group of them is one parameter of a verb."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from groundup.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.corpus.bad_records import Action, BadRecordPolicy
    from groundup.models import WeightDtypes
    from groundup.tokens.tokenizer.base import Tokenizer

Switch = Annotated[bool, Parameter(negative="")]
"""A flag without a value, and without a second one that takes it back."""

ConfigFile = Annotated[Path | None, Parameter(help="YAML file of the run (or the first override).")]
Override = Annotated[str, Parameter(help="Settings as dotted.key=value; they win over the file.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute; auto takes a GPU where there is one.")
]

GenerationDtype = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    Parameter(
        help="In which the model computes and its weights lie in memory. int8: linear layers have weights of"
        " 8 bits, all else is in bfloat16: less memory, and mostly slower (CPU only)."
    ),
]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """A tokenizer by its path or name, or by Megatron-LM's flags for the files of one.

    Attributes:
        tokenizer: Folder or file (tokenizer.json, GPT-2's two files, tokenizer.model, tiktoken ranks), or a
            name: gpt2, bytes, tiktoken:cl100k_base, none:SIZE (texts are token ids).
        vocab_file: GPT-2's vocabulary, instead of --tokenizer.
        merge_file: GPT-2's merges, with --vocab-file.
        tokenizer_model: A SentencePiece tokenizer.model, as Megatron-LM names the flag.
    """

    tokenizer: Path | None = None
    vocab_file: Path | None = None
    merge_file: Path | None = None
    tokenizer_model: Path | None = None

    def load(self) -> "Tokenizer":
        """Loads the tokenizer that the flags name.

        Raises:
            ConfigError: None, several, or half of one is given.
            DataError: What is named is missing or malformed.
            MachineError: A download failed, or a library is not installed.
        """
        from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer

        match (self.tokenizer, self.vocab_file, self.merge_file, self.tokenizer_model):
            case (Path() as path, None, None, None) | (None, None, None, Path() as path):
                return load_tokenizer(path)
            case (None, Path() as vocab_file, Path() as merge_file, None):
                return load_gpt2_files(vocab_file, merge_file)
        given = " and ".join(self._given())
        raise ConfigError(
            f"which tokenizer: {given or 'none'} given",
            where="command line",
            fix="Give a folder, file or name (--tokenizer gpt2), or --vocab-file together with --merge-file,"
            " or --tokenizer-model.",
        )

    def load_or_first(self, words: Sequence[str]) -> "tuple[Tokenizer, list[str]]":
        """Loads the tokenizer that the flags name, else that of the first word; returns the other words too.

        Raises:
            ConfigError, DataError, MachineError: As ``load``.
        """
        from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

        rest = list(words)
        if rest and not self._given():
            return load_tokenizer(Path(rest.pop(0))), rest
        return self.load(), rest

    def _given(self) -> list[str]:
        names = ("tokenizer", "vocab_file", "merge_file", "tokenizer_model")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DataTokenizerOptions(TokenizerOptions):
    """The tokenizer of token files.

    Attributes:
        tokenizer: Of the data, where no manifest tells: a folder, a file or a name.
        end_of_document_id: The id that opens documents in .npy and llm.c's shards, where it is not the
            tokenizer's.
    """

    end_of_document_id: int | None = None

    def find(self) -> "Tokenizer | None":
        """Loads the tokenizer that the flags name; None where they name none.

        Raises:
            ConfigError, DataError, MachineError: As ``load``.
        """
        return self.load() if self._given() else None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which weights of a model, and where they are used.

    Attributes:
        adapter: Folder of an adapter of the model, as PEFT saves it: it is merged into the weights.
        ema: Use the average of the weights that a run with ema.decay keeps.
        tokenizer: Folder, file or name, where the model has none or another is meant.
    """

    device: Device = "auto"
    adapter: Path | None = None
    ema: Switch = False
    tokenizer: Path | None = None

    def open(self, path: Path, dtypes: "WeightDtypes | None" = None) -> "LoadedModel":
        """Opens the model at a path, in fp32 by default.

        Raises:
            CheckpointError: There is none, or no average where that is asked for.
        """
        from groundup.checkpoint.formats import open_model
        from groundup.parallel.device import choose_device

        return open_model(path, device=choose_device(self.device), dtypes=dtypes, **self.of_stored())

    def of_stored(self) -> dict[str, Any]:
        """Returns the arguments of ``open_lazy``."""
        return {"adapter": self.adapter, "ema": self.ema, "tokenizer": self.tokenizer}


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The key of a service.

    Attributes:
        api_key: Sent as `Authorization: Bearer KEY`; the list of processes shows it to other users.
        api_key_file: A file that holds the key.
    """

    api_key: str | None = None
    api_key_file: Path | None = None

    def read(self) -> str | None:
        """Returns the key; None where none is given.

        Raises:
            ConfigError: Two are given, or one that no header can hold.
            DataError: The file cannot be read.
        """
        key = self.api_key
        if self.api_key_file is not None:
            if key is not None:
                raise ConfigError("--api-key and --api-key-file are both given", fix="Give one of them.")
            try:
                key = self.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"cannot read the key ({error})", where=self.api_key_file) from None
        if key is not None and not (key and key.isascii() and key.isprintable()):
            raise ConfigError("the API key is not one line of printable ASCII", fix="Choose another.")
        return key


NO_KEY = KeyOptions()
NO_TOKENIZER = TokenizerOptions()
NO_DATA_TOKENIZER = DataTokenizerOptions()
MODEL_AS_IT_IS = ModelOptions()


def chosen_policy(action: "Action", max_bad: float) -> "BadRecordPolicy":
    """Returns the policy that ``--bad-records`` and ``--max-bad`` name.

    Raises:
        ConfigError: ``--max-bad`` is no share.
    """
    from groundup.corpus.bad_records import BadRecordPolicy

    if not 0 <= max_bad <= 1:
        raise ConfigError(
            f"{max_bad:g} is no share of the records", where="--max-bad", fix="Give a number from 0 to 1."
        )
    return BadRecordPolicy(action=action, max_bad=max_bad)
