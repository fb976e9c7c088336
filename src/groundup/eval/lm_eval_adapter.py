"""Lets EleutherAI's lm-evaluation-harness run any of its tasks on a model (extra ``[eval]``).

``python -m groundup.eval.lm_eval_adapter`` is its command line, which then knows ``--model groundup``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

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
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks have for the most tokens of a text; the first that is there counts."""


@register_model("groundup")
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

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        """Opens what the harness's ``--model_args path=...`` names."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Opens what ``model_args={"path": ...}`` names.

        The harness's device and batch size are left aside: its defaults are a GPU and one text at a time.

        Raises:
            ConfigError: It names no path, or something else.
            CheckpointError: There is no checkpoint.
        """
        if arg_dict.keys() != {"path"}:
            raise ConfigError(
                f"the model groundup takes path, and was given {', '.join(arg_dict) or 'nothing'}",
                where="--model_args",
                fix="Write --model_args path=RUN.",
            )
        return cls.open(str(arg_dict["path"]))

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
        if options.get("do_sample", bool(options.get("temperature"))):
            raise ConfigError("the task samples its texts", fix="Set do_sample to false in the task.")
        until = options.get("until") or []
        lengths = [options[name] for name in _LENGTHS if options.get(name) is not None]
        num_tokens = int(lengths[0]) if lengths else _MAX_NEW_TOKENS
        room = max(1, self.loaded.config.max_sequence_length - num_tokens)
        prompt = [*self.loaded.bos_ids, *self.loaded.tokenizer.encode(context)]
        return Request(
            prompt=prompt[-room:] or [self.loaded.bos_id],
            sampling=Sampling(temperature=0),
            max_new_tokens=num_tokens,
            stop_ids=self.loaded.stop_ids,
            stop=[until] if isinstance(until, str) else list(until),
        )


if __name__ == "__main__":
    cli_evaluate()
