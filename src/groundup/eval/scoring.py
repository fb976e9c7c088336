"""Scores continuations of contexts: the log-probability of each, and whether greedy decoding would write it.

Every task and the perplexity of texts stand on this. Requests with the same context share its forward pass:
their continuations stand behind it in one row, under a mask that keeps them apart.

Shapes: B rows, T tokens of the longest, M scored tokens, C of a chunk, R banned, D model, V true vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from groundup.core.errors import DataError, MachineError
from groundup.models import ModelConfig, evaluating, lm_head
from groundup.models.masks import BranchMask

_LOGITS_BYTES = 64 << 20
"""Most memory that the fp32 logits of a chunk of tokens take."""
_CPU_TOKENS = 512
"""Tokens of a micro-batch on a CPU: more are no faster there."""
_GPU_TOKENS = 1 << 16
_ACTIVATIONS = 64
"""Bytes that a token needs for each unit of the model's width, at most, in a forward pass."""

Ids = npt.NDArray[np.int64]


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


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """A context with its continuations, of which none needs its last token as input."""

    ids: Ids
    positions: Ids
    branches: Ids
    columns: Ids  # where in the row each target is predicted
    targets: Ids
    requests: list[int]
    lengths: list[int]  # targets of each request


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
    device = next(model.parameters()).device
    fitted = [_fit(request, config.max_sequence_length) for request in requests]
    rows = sorted(_rows(fitted, share), key=lambda row: len(row.ids))
    scores: list[Score | None] = [None] * len(requests)
    banned_R = torch.tensor(list(banned_ids), dtype=torch.int64, device=device)
    limit = _tokens_at_once(config, device)
    with evaluating(model), torch.inference_mode():
        while rows:
            batch = rows[-_batch_rows(rows, batch_size, limit) :]
            try:
                found = _score(model, config.vocab_size, batch, banned_R)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise MachineError(
                        f"the memory does not hold one text of {len(batch[0].ids):,} tokens",
                        fix="Use a smaller model, or another --device.",
                    ) from None
                batch_size = len(batch) // 2
                continue
            del rows[-len(batch) :]
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


def _rows(requests: Sequence[Request], share: bool) -> Iterator[_Row]:
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
        yield _Row(
            ids=np.concatenate(ids),
            positions=np.concatenate(positions),
            branches=np.concatenate(branches),
            columns=np.concatenate(columns),
            targets=np.concatenate([requests[number].continuation for number in numbers]),
            requests=numbers,
            lengths=[len(requests[number].continuation) for number in numbers],
        )


def _batch_rows(rows: Sequence[_Row], batch_size: int, limit: int) -> int:
    """Says how many of the last rows, the longest of which is the last, are read at once."""
    return min(len(rows), batch_size or max(1, limit // len(rows[-1].ids)))


def _tokens_at_once(config: ModelConfig, device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(_GPU_TOKENS, free // 2 // (_ACTIVATIONS * config.hidden_size)))


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _score(
    model: Any, vocab_size: int, batch: Sequence[_Row], banned_R: Tensor
) -> list[tuple[int, dict[str, Any]]]:
    """Returns the number of each request of a micro-batch with its log-probabilities and choices."""
    device = banned_R.device
    width = len(batch[-1].ids)
    shape = (3, len(batch), width)
    inputs = np.zeros(shape, dtype=np.int64)  # causal: padding behind cannot matter
    for number, row in enumerate(batch):
        inputs[:, number, : len(row.ids)] = row.ids, row.positions, row.branches
    tokens_BT, positions_BT, branches_BT = torch.from_numpy(inputs).to(device)
    mask = BranchMask(branches_BT) if any(len(row.requests) > 1 for row in batch) else None
    hidden_BTD = model(tokens_BT, positions_BT=positions_BT, mask=mask)
    flat_M = np.concatenate([number * width + row.columns for number, row in enumerate(batch)])
    hidden_MD = hidden_BTD.flatten(0, 1)[torch.from_numpy(flat_M).to(device)]
    targets_M = torch.from_numpy(np.concatenate([row.targets for row in batch])).to(device)
    chunk = max(1, _LOGITS_BYTES // (4 * vocab_size))
    parts = [
        _choices(lm_head(model, hidden_CD, vocab_size), targets_C, banned_R)
        for hidden_CD, targets_C in zip(hidden_MD.split(chunk), targets_M.split(chunk), strict=True)
    ]
    columns = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    found = []
    begin = 0
    for row in batch:
        for number, length in zip(row.requests, row.lengths, strict=True):
            cut = slice(begin, begin + length)
            found.append((number, {name: column[cut] for name, column in columns.items()}))
            begin += length
    return found


def _choices(logits_CV: Tensor, targets_C: Tensor, banned_R: Tensor) -> dict[str, Tensor]:
    """Returns what ``Score`` holds of each token."""
    chosen_C = logits_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1)
    logprobs_C = chosen_C.double() - logits_CV.logsumexp(-1).double()
    choices_C = logits_CV.argmax(-1)
    allowed_C = choices_C
    if len(banned_R):
        allowed_C = logits_CV.index_fill_(1, banned_R, -torch.inf).argmax(-1)
    return {
        "logprobs": logprobs_C,
        "choices": choices_C,
        "greedy": choices_C == targets_C,
        "allowed": allowed_C == targets_C,
    }
