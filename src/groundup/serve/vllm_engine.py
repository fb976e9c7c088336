"""vLLM in place of our own engine: it computes and draws; texts, stop strings and limits stay ours."""

import contextlib
import dataclasses
import importlib
import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from groundup.checkpoint.formats import detect_format
from groundup.checkpoint.huggingface.weights import write_stored
from groundup.checkpoint.lazy import DtypeName, LazyModel, LoadedModel, in_dtype, shared_fields, torch_dtype
from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError, MachineError
from groundup.inference.device_model import text_vocab_size
from groundup.inference.request_rules import require_possible, with_stop_tokens
from groundup.inference.sampler import TokenLogprob
from groundup.inference.sequence import Delta, FinishReason, Request
from groundup.inference.text_stream import TextStream
from groundup.models import build_model

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_SEEDS = 1 << 63


@dataclasses.dataclass
class _Text:
    request: Request
    stream: TextStream
    num_new: int = 0


class VllmEngine:
    """Completes prompts with vLLM; for a service, in one thread.

    Args:
        folder: A Hugging Face folder, which vLLM reads.
        loaded: What else is known of the model; its weights are not used.
        dtype: In which vLLM computes.
        max_batch_size: Most texts that are worked on together.
        settings: Arguments of vLLM's ``EngineArgs``.

    Raises:
        ConfigError: It has no such argument.
        MachineError: vLLM is not installed, or does not start.
    """

    def __init__(
        self,
        folder: Path,
        loaded: LoadedModel,
        *,
        dtype: DtypeName,
        max_batch_size: int,
        settings: Mapping[str, Any],
    ) -> None:
        self._vllm = import_vllm()
        known = {field.name for field in dataclasses.fields(self._vllm.EngineArgs)}
        for name in settings.keys() - known:
            raise ConfigError("vLLM has no such argument", where=f"vllm.{name}", fix=nearest(name, known))
        ours = {"max_num_seqs": max_batch_size, "dtype": dtype, "skip_tokenizer_init": True}
        try:
            arguments = self._vllm.EngineArgs(**{"model": str(folder), **ours, **settings})
            self._engine = _without_interrupts(lambda: self._vllm.LLMEngine.from_engine_args(arguments))
        except (ValueError, RuntimeError, OSError) as error:
            raise MachineError(
                f"vLLM does not start: {error}",
                where=loaded.source,
                fix="VLLM_LOGGING_LEVEL=INFO before the command shows what it does.",
            ) from None
        self.context = self._engine.model_config.max_model_len - 1  # a new token needs a place of its own
        self.max_batch_size = max_batch_size
        self._tokenizer = loaded.tokenizer
        self._model_ids, self._text_ids = loaded.config.vocab_size, text_vocab_size(loaded)
        self._numbers = itertools.count()
        self._texts: dict[str, _Text] = {}

    def check(self, request: Request) -> None:
        """Refuses what cannot be generated.

        Raises:
            DataError: As ``require_possible``.
            ConfigError: As there, or vLLM does not know it.
        """
        unknown = {
            "beam search": request.num_beams > 1,
            "sliding of the context": request.overflow == "slide",
            "decay of top_p": request.top_p_decay != 1,
            "rule for what follows a colon": request.never_after is not None,
        }
        if names := [name for name, is_asked in unknown.items() if is_asked]:
            raise ConfigError(f"vLLM has no {' and no '.join(names)}", fix="Serve with --engine groundup.")
        require_possible(
            with_stop_tokens(request, self._tokenizer.special_tokens),
            context=self.context,
            max_batch_size=self.max_batch_size,
            model_ids=self._model_ids,
            text_ids=self._text_ids,
            empty=self._tokenizer.end_of_document_id,
        )

    def add(self, request: Request) -> int:
        """Hands a request to vLLM; returns the number of its text.

        Raises:
            DataError, ConfigError: As ``check``.
        """
        self.check(request)
        request = with_stop_tokens(request, self._tokenizer.special_tokens)
        number = next(self._numbers)
        allowed = list(range(self._text_ids)) if self._text_ids < self._model_ids else None
        settings = self._vllm.SamplingParams(
            **settings_of(request),
            allowed_token_ids=allowed,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(number), {"prompt_token_ids": list(request.prompt)}, settings)
        self._texts[str(number)] = _Text(request, TextStream(request.stop))
        return number

    def abort(self, number: int) -> None:
        """Ends a text, of which no more deltas come; nothing if it has ended."""
        if self._texts.pop(str(number), None):
            self._engine.abort_request([str(number)])

    def step(self) -> list[Delta]:
        """Waits for vLLM's next step; returns what it added to the texts."""
        found = [one for one in self._engine.step() if one.request_id in self._texts]
        return [self._delta(one) for one in found]

    def _delta(self, output: Any) -> Delta:
        """Turns what vLLM tells of a text into what is added to it."""
        number, text, part = int(output.request_id), self._texts[output.request_id], output.outputs[0]
        request, wanted = text.request, text.request.max_new_tokens - text.num_new
        kept, shown = 0, ""
        reason = _REASONS[part.finish_reason]
        for token in part.token_ids[:wanted]:
            if token in request.stop_ids:
                break
            kept += 1
            shown += text.stream.feed(self._tokenizer.token_bytes(token))
            if text.stream.stopped:
                reason = "stop"
                break
        text.num_new += kept
        if reason == "length" and text.num_new < request.max_new_tokens:
            reason = "context"
        if reason is not None:
            shown += "" if text.stream.stopped else text.stream.feed(b"", final=True)
            if output.finished:
                del self._texts[output.request_id]
            else:
                self.abort(number)
        ids = tuple(part.token_ids[:kept])
        return Delta(
            sequence=number,
            ids=ids,
            text=shown,
            logprobs=_logprobs(ids, part.logprobs, request.num_logprobs),
            prompt_logprobs=_logprobs(
                request.prompt[1:], (output.prompt_logprobs or [])[1:], request.num_prompt_logprobs
            ),
            finished=reason,
        )


_REASONS: Mapping[str | None, FinishReason | None] = {
    None: None,
    "stop": "stop",
    "length": "length",
    "repetition": "stop",
    "abort": "error",
    "error": "error",
}


def import_vllm() -> Any:
    """Returns the package, told to be silent where the user has not said otherwise.

    Raises:
        MachineError: It is not installed.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # noqa: TID251  # the only way to tell vLLM
    try:
        vllm = importlib.import_module("vllm")
        importlib.import_module("vllm.sampling_params")
    except ImportError as error:
        raise MachineError(
            f"vLLM cannot be used ({error})",
            where="--engine vllm",
            fix="Install it beside groundup, by docs.vllm.ai for your machine: pip install vllm.",
        ) from None
    return vllm


def settings_of(request: Request) -> dict[str, Any]:
    """Returns the arguments of vLLM's ``SamplingParams`` that say the same as a request."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p or 1.0,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": request.seed % _SEEDS,
        "max_tokens": max(1, request.max_new_tokens),  # it always makes one
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,  # what ends a text is in the request
        "logprobs": request.num_logprobs,
        "prompt_logprobs": request.num_prompt_logprobs,
        "detokenize": False,
    }


def _without_interrupts(start: Callable[[], Any]) -> Any:
    """Does what starts processes that Ctrl-C does not reach: it is ours, who let running texts finish first.

    Processes inherit what their parent's thread blocks. Ours can still be interrupted meanwhile.
    """
    started: Future[Any] = Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started.set_result(start())
        except BaseException as error:  # whatever it is, who waits is told
            started.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return started.result()


def _logprobs(ids: Any, found: Any, count: int | None) -> tuple[TokenLogprob, ...]:
    """Turns vLLM's table of each token into what we tell of it."""
    if count is None or not found:
        return ()
    logprobs = []
    for token, of in zip(ids, found, strict=False):
        ranked = sorted((one.rank, number, one.logprob) for number, one in of.items())
        top = tuple((number, value) for rank, number, value in ranked if rank <= count)
        logprobs.append(TokenLogprob(chosen=of[token].logprob, top=top))
    return tuple(logprobs)


@contextlib.contextmanager
def vllm_engine(
    path: Path, stored: LazyModel, *, dtype: DtypeName, max_batch_size: int, settings: Mapping[str, Any]
) -> Iterator[tuple[LoadedModel, VllmEngine]]:
    """Starts vLLM with a model while entered; one of another format is exported for it meanwhile.

    Args:
        path: Of the model.
        stored: The same, opened.
        dtype: As ``VllmEngine``, and of the export.
        max_batch_size: As ``VllmEngine``.
        settings: As ``VllmEngine``.

    Yields:
        All of the model but its weights, and the engine.

    Raises:
        ConfigError, MachineError: As ``VllmEngine``.
        CheckpointError, MachineError: The model cannot be exported.
    """
    import_vllm()
    loaded = LoadedModel(model=build_model(stored.config, device="meta").eval(), **shared_fields(stored))
    with tempfile.TemporaryDirectory(prefix="groundup-vllm-") as parent:
        folder = path
        if detect_format(path).name != "hf":
            folder = Path(parent, "model")
            write_stored(in_dtype(stored, torch_dtype(dtype)), folder)
        yield (
            loaded,
            VllmEngine(folder, loaded, dtype=dtype, max_batch_size=max_batch_size, settings=settings),
        )
