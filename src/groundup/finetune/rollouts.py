"""Completions of prompts by the weights in training, drawn by the engine that serves models."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from groundup.checkpoint.lazy import LoadedModel
from groundup.finetune.lora import with_adapters_merged
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import FinishReason, Request
from groundup.models import build_model
from groundup.parallel.dtensor import local, whole
from groundup.train.setup import Run

_MOST_TEXTS = 256
"""Worked on together: a step's time hardly falls with more."""
_STEP_TOKENS = 2048
_MOST_CACHE = 4 << 30


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model wrote.

    Attributes:
        ids: With the id that ended it.
        text: Without it.
        finished: Why it ended.
    """

    ids: tuple[int, ...]
    text: str
    finished: FinishReason


def seed_of(seed: int, sample: int) -> int:
    """Returns the seed of a completion: its draws depend on nothing else."""
    digest = hashlib.blake2b(f"groundup rollout 1: {seed} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def complete_prompts(
    run: Run,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    on_progress: Callable[[], object],
) -> list[Completion]:
    """Completes prompts with the present weights, each with its own seed.

    Raises:
        CheckpointError: The weights are not finite.
    """
    loaded = LoadedModel(
        config=run.config.model,
        model=_model_of(run),
        tokenizer=run.tokenizer,
        source=run.config.run_dir,
        bos_ids=run.state.bos_ids,
        companions=run.state.companions,
    )
    requests = [
        Request(
            prompt=prompt,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            seed=seed,
            stop_ids=loaded.stop_ids,
        )
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    engine = Engine(
        loaded,
        dtype=run.precision.dtype,
        max_batch_size=min(len(requests), _MOST_TEXTS),
        max_step_tokens=_STEP_TOKENS,
        cache_bytes=_MOST_CACHE,
        owns_model=True,
    )
    found = []
    for one in engine.complete(requests):
        on_progress()
        ids = one.ids if one.stop_id is None else (*one.ids, one.stop_id)
        found.append(Completion(ids, one.text, one.finished))
    return found


def _model_of(run: Run) -> nn.Module:
    """Returns the whole model in evaluation mode; its weights are the present ones, in the dtype of its work.

    They are copies only where they are cast or gathered, or have adapters, which are merged into them: beside
    them each token would pay for three products instead of one.
    """
    weights = {name: _whole(parameter.detach()) for name, parameter in run.state.model.named_parameters()}
    if run.learning.adapters:
        weights = with_adapters_merged(weights, run.learning.adapters.about.scale)
    model = build_model(run.config.model, device="meta")
    cast = {name: weight.to(run.precision.dtype) for name, weight in weights.items()}
    model.load_state_dict(cast, assign=True, strict=False)  # a tied head comes next
    if run.config.model.tied_embedding:
        model.tie_weights()
    return model.eval()


def _whole(parameter: Tensor) -> Tensor:
    """Returns a whole parameter: the one that is there where this rank has all of it."""
    own = local(parameter)
    return own if own.shape == parameter.shape else whole(parameter)
