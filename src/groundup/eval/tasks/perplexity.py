"""How well a model predicts all tokens of a text or of a tokenized dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from groundup.checkpoint.lazy import LoadedModel, require_finite_loss
from groundup.core.config import config
from groundup.core.progress import Progress
from groundup.eval.perplexity import perplexity, token_byte_lengths, unigram_entropy
from groundup.eval.token_data import SplitName, open_tokens
from groundup.tokens.dataset.token_source import TokenRange


@config
class PerplexityTask:
    """Predicts every token but the first, in windows that do not overlap.

    Attributes:
        split_name: Which split of token files; texts have only "all".
        split: Shares of train, validation and test over their documents.
        text_key: The JSON field that holds the text.
        sequence_length: Tokens of a window; 0 for the model's context.
        batch_size: Windows at a time; changes no result.
        max_tokens: Predict only the first so many tokens; 0 for all.
    """

    kind: Literal["perplexity"] = "perplexity"
    split_name: SplitName = "all"
    split: str = "969,30,1"
    text_key: str = "text"
    sequence_length: Annotated[int, Field(ge=0)] = 0
    batch_size: Annotated[int, Field(ge=1)] = 8
    max_tokens: Annotated[int, Field(ge=0)] = 0

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> dict[str, float | int]:
        """Loss, perplexity, bits per byte, and the loss of knowing only the tokens' frequencies."""
        tokens = open_tokens(
            data,
            loaded.tokenizer,
            split=self.split,
            split_name=self.split_name,
            text_key=self.text_key,
        )
        total = min(len(tokens) - 1, self.max_tokens or len(tokens))
        with Progress("evaluate", total, "tokens") as progress:
            evaluation = perplexity(
                loaded.model,
                loaded.config,
                tokens,
                byte_lengths=token_byte_lengths(loaded.tokenizer),
                sequence_length=self.sequence_length,
                batch_size=self.batch_size,
                max_tokens=self.max_tokens,
                on_progress=progress.add,
            )
        require_finite_loss(evaluation.loss, loaded)
        return {
            "loss": evaluation.loss,
            "perplexity": evaluation.perplexity,
            "bits_per_byte": evaluation.bits_per_byte,
            "unigram_entropy": unigram_entropy(TokenRange(tokens, 1, evaluation.num_tokens + 1)),
            "tokens": evaluation.num_tokens,
            "bytes": evaluation.num_bytes,
        }
