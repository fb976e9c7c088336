"""Measures how well a model predicts last words, as LAMBADA asks (Paperno et al. 2016, arXiv:1606.06031).

The strict form, as Megatron-LM's ``--strict-lambada``: the last word is everything behind the last
space, and counts as right when every one of its tokens is the most probable one.

Shapes: B passages, T tokens, D model, V true vocabulary, M tokens of last words.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LoadedModel, require_finite_loss
from groundup.core.config_class import NotNegative, Positive, config
from groundup.core.errors import DataError
from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.read_documents import read_documents
from groundup.eval.tasks.evaluation_task import EvaluationTask, Figure, Results
from groundup.models import evaluating, lm_head


@dataclasses.dataclass(frozen=True)
class _Passage:
    ids: list[int]
    num_targets: int


@config
class Lambada(EvaluationTask):
    """Measures how often and how surely the last word of each passage is predicted.

    Attributes:
        text_key: The JSON field that holds the passage.
        batch_size: Passages at a time; changes no result.
        limit: Read only the first so many passages; 0 for all.
    """

    figures: ClassVar = {
        "accuracy": Figure(better="higher"),
        "standard_error": Figure(),
        "perplexity": Figure(better="lower"),
        "right": Figure(better="higher"),
        "passages": Figure(),
    }

    kind: Literal["lambada"] = "lambada"
    text_key: str = "text"
    batch_size: Positive = 8
    limit: NotNegative = 0

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Returns accuracy and its standard error, and exp of the mean negative log-probability of a word."""
        found = itertools.islice(_passages(loaded, data, self.text_key), self.limit or None)
        passages = sorted(found, key=lambda passage: len(passage.ids))
        if not passages:
            raise DataError(
                "there is no passage in it",
                where=", ".join(map(str, data)),
                fix="Name a file or folder with passages.",
            )
        right, total_loss = 0, 0.0
        with (
            Progress("evaluate", len(passages), "passages") as progress,
            evaluating(loaded.model),
            torch.inference_mode(),
        ):
            for begin in range(0, len(passages), self.batch_size):
                batch = passages[begin : begin + self.batch_size]
                batch_right, batch_loss = _score(loaded, batch)
                right += batch_right
                total_loss += batch_loss
                progress.add(len(batch))
        require_finite_loss(total_loss, loaded)
        accuracy = right / len(passages)
        return {
            "accuracy": accuracy,
            "standard_error": math.sqrt(accuracy * (1 - accuracy) / len(passages)),
            "perplexity": math.exp(min(700.0, total_loss / len(passages))),
            "right": right,
            "passages": len(passages),
        }


def _passages(loaded: LoadedModel, data: Sequence[Path], text_key: str) -> Iterator[_Passage]:
    encode = loaded.tokenizer.encode
    longest = loaded.config.max_sequence_length + 1
    strict = BadRecords(BadRecordPolicy(action="fail"), key_setting="lambada.text_key")
    for document in read_documents(data, text_key=text_key, bad_records=strict):
        context, space, word = document.text.rstrip().rpartition(" ")
        if not context.strip():
            raise DataError(
                f"the passage {document.text[:40]!r} has no context before its last word",
                where=document.meta.get("origin", document.id),
                fix="Each passage needs at least two words.",
            )
        target = encode(space + word)
        ids = [*loaded.bos_ids, *encode(context.rstrip()), *target]
        yield _Passage(ids[-longest:], len(target))


def _score(loaded: LoadedModel, batch: Sequence[_Passage]) -> tuple[int, float]:
    """Counts the last words that are right, and sums the negative log-probabilities of all."""
    device = next(loaded.model.parameters()).device
    width = max(len(passage.ids) for passage in batch) - 1
    tokens_BT = torch.zeros(len(batch), width, dtype=torch.int64)  # causal: padding behind cannot matter
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for row, passage in enumerate(batch):
        length = len(passage.ids) - 1
        tokens_BT[row, :length] = torch.tensor(passage.ids[:-1])
        rows += [row] * passage.num_targets
        columns += range(length - passage.num_targets, length)
        targets += passage.ids[-passage.num_targets :]
    hidden_MD: Tensor = loaded.model(tokens_BT.to(device))[rows, columns]
    log_probabilities_MV = lm_head(loaded.model, hidden_MD, loaded.config.vocab_size).log_softmax(-1)
    targets_M = torch.tensor(targets, device=device)
    hit_M = log_probabilities_MV.argmax(-1) == targets_M
    word_M = torch.tensor(rows, device=device)
    misses_B = torch.zeros(len(batch), device=device).index_add_(0, word_M, (~hit_M).float())
    loss = -log_probabilities_MV.gather(1, targets_M.unsqueeze(1)).double().sum()
    return int((misses_B == 0).sum()), float(loss)
