"""A model ready for use, wherever it came from."""

import dataclasses
from pathlib import Path

from torch import nn

from groundup.models import ModelConfig
from groundup.tokens.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        config: The architecture.
        model: In evaluation mode, weights in fp32, on the device that was asked for.
        tokenizer: What its token ids mean.
        source: The folder it was read from.
        prompt_prefix: Ids that stand before every prompt (the begin token of many Llamas); none for
            models trained here.
    """

    config: ModelConfig
    model: nn.Module
    tokenizer: Tokenizer
    source: Path
    prompt_prefix: tuple[int, ...] = ()


def begin_id(loaded: LoadedModel) -> int:
    """The id that a text without a prompt begins with: the begin token, or else the end of a document."""
    return loaded.prompt_prefix[0] if loaded.prompt_prefix else loaded.tokenizer.end_of_document_id
