"""Scores continuations of contexts: the log-probability of each, and whether greedy decoding would write it.

Every task and the perplexity of texts stand on this. Requests with the same context share its forward pass:
their continuations stand behind it in one row, under a mask that keeps them apart.

Over the ranks of a ``ParallelModel`` each replica takes other micro-batches, and every rank gets all scores.

Shapes: R banned.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from groundup.core.errors import DataError, MachineError
from groundup.eval.scored_rows import Found, Ids, Row, score_rows
from groundup.models import ModelConfig
from groundup.parallel.parallel_model import ParallelModel

_CPU_TOKENS = 512
"""Tokens of a micro-batch on a CPU: more are no faster there."""
_GPU_TOKENS = 1 << 16
_ACTIVATIONS = 64
"""Bytes that a token needs for each unit of the model's width, at most, in a forward pass."""


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """Asks how probable a continuation is.

    Attributes:
        context: Ids of what stands before it, at least one.
        continuation: Its ids, at least one.
        num_bytes: Of its text.
    """

    context: Ids
    continuation: Ids
    num_bytes: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """Says how probable a continuation is.

    Attributes:
        logprobs: Of each of its tokens, given those before it, in nats.
        choices: The most probable token in each place.
        greedy: Whether each is the most probable one.
        allowed: Whether each is the most probable one of those that were not banned.
        num_bytes: Of its text.
        num_truncated: Tokens that were cut off the context's beginning, since the model's is shorter.
    """

    logprobs: npt.NDArray[np.float64]
    choices: Ids
    greedy: npt.NDArray[np.bool_]
    allowed: npt.NDArray[np.bool_]
    num_bytes: int = 0
    num_truncated: int = 0

    @property
    def logprob(self) -> float:
        """The log-probability of the whole continuation."""
        return float(self.logprobs.sum())

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding writes exactly this continuation."""
        return bool(self.greedy.all())

    @property
    def num_tokens(self) -> int:
        """Tokens of the continuation."""
        return len(self.logprobs)


def loglikelihood(
    model: nn.Module,
    config: ModelConfig,
    requests: Sequence[Request],
    *,
    batch_size: int = 0,
    banned_ids: Sequence[int] = (),
    share: bool = True,
    on_progress: Callable[[Sequence[Score]], None] | None = None,
) -> list[Score]:
    """Scores each request as if it were alone.

    Args:
        model: On its device; in evaluation mode while it scores.
        config: Its architecture.
        requests: In any order; the longest are scored first. Contexts too long are cut at their beginning.
        batch_size: Contexts at a time; 0 for as many as are fast and fit into memory. Changes no score.
        banned_ids: Tokens that ``Score.allowed`` leaves out of the choice.
        share: Read a context that several requests have once.
        on_progress: Told the scores of each micro-batch.

    Raises:
        DataError: A continuation is empty or longer than the model's context.
        MachineError: The memory does not hold a single context.
    """
    over = model if isinstance(model, ParallelModel) else ParallelModel(model)
    fitted = [_fit(request, config.max_sequence_length) for request in requests]
    rows = sorted(_rows(fitted, share), key=lambda row: len(row.ids))
    scores: list[Score | None] = [None] * len(requests)
    banned_R = torch.tensor(list(banned_ids), dtype=torch.int64, device=over.device)
    limit = min(over.mesh.all_gather(_tokens_at_once(config, over.device)))
    with over.evaluation():
        while rows:
            batches = _next_batches(rows, over.num_replicas * over.micro_batches_at_once, batch_size, limit)
            every = over.mesh.all_gather(_try(over, config.vocab_size, batches, banned_R))
            if None in every:
                longest = max(map(len, batches))
                if longest == 1:
                    raise MachineError(
                        f"the memory does not hold one text of {len(batches[0][0].ids):,} tokens",
                        fix="Use a smaller model, or another --device.",
                    )
                batch_size = longest // 2
                continue
            del rows[-sum(map(len, batches)) :]
            found = [pair for part in every for pair in part]
            for number, parts in found:
                truncated = len(requests[number].context) - len(fitted[number].context)
                scores[number] = Score(**parts, num_bytes=requests[number].num_bytes, num_truncated=truncated)
            if on_progress:
                on_progress([score for number, _ in found if (score := scores[number])])
    return [score for score in scores if score is not None]


def windows(tokens: Any, length: int, stride: int, num_targets: int) -> Iterator[Request]:
    """Yields requests that predict the targets 1 to ``num_targets`` of a text, each once.

    The first window predicts ``length`` tokens, each further one begins ``stride`` tokens later and predicts
    those that the one before did not reach.

    Args:
        tokens: [num_tokens], any integer dtype, memory-mapped or not.
        length: Tokens that the model reads at a time.
        stride: 1 to ``length``, where windows do not overlap.
        num_targets: At most one less than the tokens.
    """
    for begin in range(0, max(1, num_targets - length + stride), stride):
        end = min(begin + length, num_targets)
        piece = np.asarray(tokens[begin : end + 1], dtype=np.int64)
        known = length - stride + 1 if begin else 1
        yield Request(piece[:known], piece[known:])


def _fit(request: Request, longest: int) -> Request:
    """Cuts the context so that the model reads at most ``longest`` tokens."""
    wanted = len(request.continuation)
    if not wanted or not len(request.context):
        empty = "context" if wanted else "continuation"
        raise DataError(f"the {empty} is empty", fix="Mend the item or leave it out.")
    if wanted > longest:
        raise DataError(
            f"a continuation has {wanted:,} tokens, the model's context holds {longest:,}",
            fix="Leave the item out.",
        )
    kept = request.context[-(longest + 1 - wanted) :]
    return dataclasses.replace(request, context=kept)


def _rows(requests: Sequence[Request], share: bool) -> Iterator[Row]:
    groups: dict[Any, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.context.tobytes() if share else number, []).append(number)
    for numbers in groups.values():
        context = requests[numbers[0]].context
        known = len(context)
        ids, positions, branches, columns = [context], [np.arange(known)], [np.zeros_like(context)], []
        end = known
        for branch, number in enumerate(numbers, start=1):
            continuation = requests[number].continuation
            read = len(continuation) - 1
            ids.append(continuation[:-1])
            positions.append(np.arange(known, known + read))
            branches.append(np.full(read, branch))
            columns.append(np.r_[known - 1, end : end + read])
            end += read
        yield Row(
            ids=np.concatenate(ids),
            positions=np.concatenate(positions),
            branches=np.concatenate(branches),
            columns=np.concatenate(columns),
            targets=np.concatenate([requests[number].continuation for number in numbers]),
            requests=numbers,
            lengths=[len(requests[number].continuation) for number in numbers],
        )


def _next_batches(rows: Sequence[Row], count: int, batch_size: int, limit: int) -> list[Sequence[Row]]:
    """Returns so many micro-batches of the last rows, which are the longest, or as many as there are."""
    batches: list[Sequence[Row]] = []
    left = len(rows)
    while left and len(batches) < count:
        even = -(-left // (count - len(batches)))
        size = min(even, batch_size or max(1, limit // len(rows[left - 1].ids)))
        batches.append(rows[left - size : left])
        left -= size
    return batches


def _try(
    model: ParallelModel, vocab_size: int, batches: Sequence[Sequence[Row]], banned_R: torch.Tensor
) -> Found | None:
    """Scores this rank's share of micro-batches, each once over all ranks; None where the memory is full."""
    mine = list(range(model.replica, len(batches), model.num_replicas))
    # Ranks that share weights compute as often as the others: what one has too many counts nowhere.
    missing = -(-len(batches) // model.num_replicas) - len(mine) if model.shares_weights else 0
    filled = [*mine, *[0] * missing]
    try:
        found = score_rows(model, vocab_size, [batches[number] for number in filled], banned_R)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        if model.is_independent:
            return None
        # The others wait within the forward pass, and cannot be told.
        raise MachineError(
            f"the memory does not hold {max(map(len, batches))} texts of {len(batches[0][-1].ids):,} tokens",
            fix="Set batch_size of the task, say perplexity.batch_size=1, or choose a higher layout.tp.",
        ) from None
    return [pair for part in found[: len(mine)] for pair in part] if model.tells else []


def _tokens_at_once(config: ModelConfig, device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(_GPU_TOKENS, free // 2 // (_ACTIVATIONS * config.hidden_size)))


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    of_gpu_or_numpy = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return of_gpu_or_numpy or "can't allocate memory" in str(error)
