"""Lets EleutherAI's lm-evaluation-harness run any of its tasks on a model (extra ``[eval]``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from lm_eval.api.model import LM

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import ConfigError
from groundup.eval.scoring import loglikelihood
from groundup.eval.text_requests import rolling_requests, text_request
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.parallel.device import choose_device

_MAX_NEW_TOKENS = 256  # where a task sets none, as the harness's own models


class GroundupLM(LM):  # type: ignore[misc]  # the harness has no types
    """A model to give to ``lm_eval.simple_evaluate(model=...)``.

    Args:
        loaded: Model and tokenizer.
        batch_size: Contexts at a time; 0 for as many as are fast and fit into memory. Changes no score.
    """

    def __init__(self, loaded: LoadedModel, *, batch_size: int = 0) -> None:
        super().__init__()
        self.loaded = loaded
        self.scoring_batch_size = batch_size

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens any checkpoint: of a run, a Hugging Face folder, or Megatron-LM's.

        Raises:
            CheckpointError: There is none.
        """
        return cls(open_model(Path(path), device=choose_device("auto")))

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Scores pairs of context and continuation."""
        pairs = [text_request(self.loaded, *request.args) for request in requests]
        found = loglikelihood(
            self.loaded.model, self.loaded.config, pairs, batch_size=self.scoring_batch_size
        )
        return [(score.logprob, score.is_greedy) for score in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Scores whole texts."""
        windows = [list(rolling_requests(self.loaded, *request.args)) for request in requests]
        flat = [window for some in windows for window in some]
        scores = iter(
            loglikelihood(self.loaded.model, self.loaded.config, flat, batch_size=self.scoring_batch_size)
        )
        return [sum(next(scores).logprob for _ in some) for some in windows]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Completes contexts greedily, up to a stop text.

        Raises:
            ConfigError: The task wants sampled texts.
        """
        wanted = [self._request(*request.args) for request in requests]
        return [generation.text for generation in Engine(self.loaded).complete(wanted)]

    def _request(self, context: str, options: dict[str, Any]) -> Request:
        if options.get("do_sample"):
            raise ConfigError("the task samples its texts", fix="Set do_sample to false in the task.")
        until = options.get("until") or []
        num_tokens = options.get("max_gen_toks", _MAX_NEW_TOKENS)
        room = max(1, self.loaded.config.max_sequence_length - num_tokens)
        return Request(
            prompt=[*self.loaded.bos_ids, *self.loaded.tokenizer.encode(context)][-room:],
            sampling=Sampling(temperature=0),
            max_new_tokens=num_tokens,
            stop_ids=self.loaded.stop_ids,
            stop=[until] if isinstance(until, str) else list(until),
        )
