"""WikiText-2 and WikiText-103 by Megatron-LM's protocol (Merity et al. 2016, arXiv:1609.07843).

The whole file is detokenized and tokenized at once. Windows of the model's context advance by ``stride``
tokens, so that a token is predicted from nearly a whole context. As the models of the literature predict
words, the loss a token is multiplied by the number of tokens over that of words, of the text as it was: the
adjusted perplexity.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from groundup.checkpoint.lazy import LoadedModel, require_finite_loss
from groundup.core.config_class import NotNegative, config
from groundup.core.errors import DataError
from groundup.core.progress import Progress
from groundup.corpus.line_blocks import decompressed
from groundup.eval.detokenize import detokenize_wikitext
from groundup.eval.perplexity import perplexity, token_byte_lengths
from groundup.eval.tasks.evaluation_task import EvaluationTask, Figure, Results

_LARGEST_EXPONENT = 20.0  # Megatron-LM's


@config
class WikiText(EvaluationTask):
    """Measures the word-level perplexity of a tokenized text.

    Attributes:
        stride: Tokens by which windows advance; 0 for whole windows, which are quicker and rate a model
            worse.
        detokenize: Undo the text's tokenization.
        batch_size: Windows at a time; 0 for as many as are fast and fit into memory. Changes no result.
        max_tokens: Predict only the first so many tokens; 0 for all. Then words count by their share of the
            text.
    """

    figures: ClassVar = {
        "adjusted_perplexity": Figure(unit="a word", better="lower"),
        "perplexity": Figure(unit="a token", better="lower"),
        "bits_per_byte": Figure(unit="bits", better="lower"),
        "loss": Figure(unit="nats a token", better="lower"),
        "token_ratio": Figure(unit="tokens a word"),
        "tokens": Figure(),
        "words": Figure(),
    }
    patterns: ClassVar = ("wiki.test.tokens*", "wiki.test.*")

    kind: Literal["wikitext"] = "wikitext"
    stride: NotNegative = 32
    detokenize: bool = True
    batch_size: NotNegative = 0
    max_tokens: NotNegative = 0

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Returns the perplexity a word and a token."""
        files = self.find_files(data)
        if len(files) != 1:
            raise DataError(
                f"{len(files)} files were named; wikitext reads one",
                where=", ".join(map(str, files)),
                fix="Name one.",
            )
        text = _read(files[0])
        if text.lstrip()[:1] in ("{", "["):
            raise DataError(
                "holds JSON, and wikitext reads a plain text, WikiText's",
                where=files[0],
                fix="Name wiki.test.tokens; --tasks perplexity reads JSON Lines.",
            )
        num_words = len(text.strip().split(" "))
        tokens = loaded.tokenizer.encode_array(detokenize_wikitext(text) if self.detokenize else text)
        if num_words < 2:
            raise DataError("the text has fewer than two words", where=files[0], fix="Name WikiText's file.")
        total = min(len(tokens) - 1, self.max_tokens or len(tokens))
        with Progress("evaluate", total, "tokens") as progress:
            found = perplexity(
                loaded.model,
                loaded.config,
                tokens,
                byte_lengths=token_byte_lengths(loaded.tokenizer),
                stride=min(self.stride, loaded.config.max_sequence_length),
                batch_size=self.batch_size,
                max_tokens=self.max_tokens,
                on_progress=progress.add,
            )
        require_finite_loss(found.loss, loaded)
        ratio = (len(tokens) - 1) / (num_words - 1)
        return Results(
            figures={
                "adjusted_perplexity": math.exp(min(_LARGEST_EXPONENT, found.loss * ratio)),
                "perplexity": math.exp(min(_LARGEST_EXPONENT, found.loss)),
                "bits_per_byte": found.bits_per_byte,
                "loss": found.loss,
                "token_ratio": ratio,
                "tokens": found.num_tokens,
                "words": num_words,
            }
        )


def _read(path: Path) -> str:
    with decompressed(path) as stream:
        try:
            return stream.read().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"is not UTF-8: {error.reason}", where=path, fix="Get the file again.") from None
