"""Measures how well a model predicts all tokens of a text or of a tokenized dataset."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from groundup.checkpoint.lazy import LoadedModel, require_finite_loss
from groundup.core.config_class import NotNegative, Positive, config
from groundup.core.progress import Progress
from groundup.eval.perplexity import perplexity, token_byte_lengths, unigram_entropy
from groundup.eval.tasks.evaluation_task import EvaluationTask, Figure, Results
from groundup.eval.token_data import SplitName, open_tokens, split_of_run
from groundup.tokens.dataset.token_source import TokenRange


@config
class PerplexityTask(EvaluationTask):
    """Predicts every token but the first, in windows that do not overlap.

    Attributes:
        split_name: Which split of token files; texts have only "all".
        split: Shares of train, validation and test over their documents; empty for those of the run.
        text_key: The JSON field that holds the text.
        sequence_length: Tokens of a window; 0 for the model's context.
        batch_size: Windows at a time; changes no result.
        max_tokens: Predict only the first so many tokens; 0 for all.
    """

    figures: ClassVar = {
        "loss": Figure(unit="nats a token", better="lower"),
        "perplexity": Figure(better="lower"),
        "bits_per_byte": Figure(unit="bits", better="lower"),
        "unigram_entropy": Figure(unit="nats a token"),
        "tokens": Figure(),
        "bytes": Figure(),
    }

    kind: Literal["perplexity"] = "perplexity"
    split_name: SplitName = "all"
    split: str = ""
    text_key: str = "text"
    sequence_length: NotNegative = 0
    batch_size: Positive = 8
    max_tokens: NotNegative = 0

    def __post_init__(self) -> None:
        """Refuses shares of which none is chosen."""
        if self.split and self.split_name == "all":
            raise ValueError(
                "split has no effect on all documents; choose train, validation or test by split_name"
            )

    def for_model(self, loaded: LoadedModel) -> Self:
        """Returns the task with the split that the model was trained with, where none is given."""
        if self.split or self.split_name == "all":
            return self
        return dataclasses.replace(self, split=split_of_run(loaded.source))

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Returns loss, perplexity, bits per byte, and the loss of knowing only the tokens' frequencies."""
        tokens = open_tokens(
            data,
            loaded.tokenizer,
            split=self.for_model(loaded).split,
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
