"""Makes the plan of a step's forward pass, one whatever mixture of texts it is, and hands out its logits.

Shapes: R rows of which logits are wanted, V true vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from groundup.inference.paged_cache import Span
from groundup.inference.scheduler import Work
from groundup.inference.sequence import TokenSequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan:
    """All that a model with a paged cache must know of a step, in plain numbers.

    Attributes:
        tokens: New tokens of all texts, one behind the other.
        positions: Of each in its text.
        spans: Of the texts, those of one token first.
        rows: The tokens after which logits are wanted.
        cleared: Blocks to be filled with zeros before anything else.
        copies: Block -> the one whose content it gets, before new tokens are stored.
    """

    tokens: list[int]
    positions: list[int]
    spans: list[Span]
    rows: list[int]
    cleared: list[int]
    copies: dict[int, int]


@dataclasses.dataclass(frozen=True)
class StepLogits:
    """What a step tells, in fp32.

    Attributes:
        sequences: The texts whose next token can be drawn.
        next_RV: The logits of it.
        prompts: Texts with positions of their prompts, and the logits of the tokens after these.
    """

    sequences: list[TokenSequence]
    next_RV: Tensor
    prompts: list[tuple[TokenSequence, range, Tensor]]


class StepModel(Protocol):
    """A model with a paged cache, on one device or over several ranks."""

    @property
    def bytes_per_token(self) -> int:
        """Returns the bytes of a token's keys and values."""
        ...

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes room for keys and values; once, before anything is computed."""
        ...

    def compute(self, plan: StepPlan) -> Tensor:
        """Returns the logits [R, V] of the plan's rows in fp32."""
        ...


class Runner:
    """Runs steps.

    Args:
        model: Does their plans.
    """

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self._cleared: list[int] = []
        self._copies: dict[int, int] = {}

    def clear(self, blocks: Sequence[int]) -> None:
        """Fills blocks with zeros before the next step."""
        self._cleared += blocks

    def copy(self, source: int, target: int) -> None:
        """Copies a block before the next step."""
        self._copies[target] = source

    def run(self, work: Sequence[Work]) -> StepLogits:
        """Does the work of a step in one forward pass."""
        ordered = sorted(work, key=lambda one: (one.num_tokens > 1, -one.sequence.computed))
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        prompt_rows: list[int] = []
        prompts: list[tuple[TokenSequence, range]] = []
        for one in ordered:
            begin, first_row = one.sequence.computed, len(tokens)
            span = Span(begin, one.num_tokens, one.sequence.blocks)
            spans.append(span)
            tokens += one.sequence.window(begin, span.end)
            positions += range(begin, span.end)
            if one.is_last:
                last_rows.append(len(tokens) - 1)
            if wanted := one.sequence.wanted_of_prompt(begin, span.end):
                prompts.append((one.sequence, wanted))
                prompt_rows += [first_row + position - begin for position in wanted]
        plan = StepPlan(
            tokens=tokens,
            positions=positions,
            spans=spans,
            rows=last_rows + prompt_rows,
            cleared=self._cleared,
            copies=self._copies,
        )
        self._cleared, self._copies = [], {}
        next_RV, *of_prompts = self.model.compute(plan).split(
            [len(last_rows), *(len(one) for _, one in prompts)]
        )
        return StepLogits(
            [one.sequence for one in ordered if one.is_last],
            next_RV,
            [(*about, logits_RV) for about, logits_RV in zip(prompts, of_prompts, strict=True)],
        )
