"""``groundup serve``."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from groundup.cli.options import (
    MODEL_AS_IT_IS,
    NO_KEY,
    GenerationDtype,
    KeyOptions,
    ModelOptions,
    Override,
)
from groundup.core.errors import ConfigError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.parallel.layout import Layout
    from groundup.serve.service import Limits
    from groundup.serve.text_engine import TextEngine

_LOCAL = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What clients may ask for; more is refused with status 413, 422 or 429.

    Attributes:
        max_request_bytes: Of a request's body.
        max_prompt_tokens: Of one prompt; 0: what the model's context holds.
        max_new_tokens: Of one text; 0: what the model's context holds.
        max_texts: Of one request, prompts times samples.
        max_batch_size: Texts that are worked on together.
        max_waiting: Texts that wait while so many are in work.
        drain_seconds: How long running requests have to finish after SIGTERM or Ctrl-C.
    """

    max_request_bytes: int = 1 << 20
    max_prompt_tokens: int = 0
    max_new_tokens: int = 0
    max_texts: int = 128
    max_batch_size: int = 64
    max_waiting: int = 256
    drain_seconds: float = 30

    def read(self) -> "Limits":
        """Returns those of the service.

        Raises:
            ConfigError: One is out of its range.
        """
        from groundup.core.config import from_dict
        from groundup.serve.service import Limits

        flags = {
            "request_bytes": self.max_request_bytes,
            "prompt_tokens": self.max_prompt_tokens,
            "new_tokens": self.max_new_tokens,
            "texts": self.max_texts,
            "waiting": self.max_waiting,
        }
        names = {flag: f"--max-{flag.replace('_', '-')}" for flag in flags}
        if self.max_batch_size < 1 or not self.drain_seconds >= 0:
            raise ConfigError("--max-batch-size is 1 or more, --drain-seconds 0 or more")
        return from_dict(Limits, flags, where="command line", names=names)


USUAL_LIMITS = LimitOptions()


def serve(
    path: Path,
    *overrides: Override,
    host: str = "127.0.0.1",
    port: int = 5000,
    name: str | None = None,
    dtype: GenerationDtype = "float32",
    engine: Literal["groundup", "vllm"] = "groundup",
    limits: LimitOptions = USUAL_LIMITS,
    key: KeyOptions = NO_KEY,
    model: ModelOptions = MODEL_AS_IT_IS,
) -> None:
    """Serve a model over HTTP: OpenAI's API, and Megatron-LM's `PUT /api`.

    Nothing but the checkpoint is needed. Requests join the running batch at once. SIGTERM or Ctrl-C lets
    running requests finish and refuses new ones; a second one ends at once.

    /v1/completions, /v1/chat/completions and /v1/models speak to OpenAI's clients, /api to Megatron-LM's;
    /health is for load balancers, /metrics for Prometheus, /openapi.json describes it all.

    A layout of several ranks, layout.tp or layout.pp, spreads the model over GPUs or processes of this
    machine. With --engine vllm, vLLM computes in place of our engine, and vllm.NAME=VALUE sets an argument
    of its own; it is installed apart.

    For example:
        groundup serve runs/quickstart/model
        groundup serve gpt2 layout.tp=2 layout.pp=2
        groundup serve gpt2 --port 8000 --dtype bfloat16
        groundup serve gpt2 --host 0.0.0.0 --api-key-file key.txt --max-new-tokens 256
        groundup serve gpt2 --engine vllm --dtype bfloat16 layout.tp=2 vllm.gpu_memory_utilization=0.5

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of Megatron-LM.
        host: The address to listen at; 0.0.0.0 is all of the machine's.
        port: To listen at; 0 takes a free one.
        name: Of the model for clients; the folder's when left out.
        engine: What computes; what clients see is the same.
    """
    from groundup.cli.over_ranks import generation_dtypes, start_ranks, undivided_layout
    from groundup.launch.env import own_rank
    from groundup.serve.http_server import bind, run, url_of
    from groundup.serve.service import Service

    began = time.monotonic()
    api_key = key.read()
    checked = limits.read()
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"--port {port} is no port: they go up to 65535")
    of_vllm = [word for word in overrides if engine == "vllm" and word.startswith("vllm.")]
    layout = undivided_layout([word for word in overrides if word not in of_vllm])
    options = _Options(path, layout, model, dtype, limits.max_batch_size)
    if engine == "groundup":
        generation_dtypes(dtype, layout, model.device)  # or it is refused, before ranks start
        start_ranks(layout)
    listener = bind(host, port) if own_rank() == 0 else None
    if listener and host not in _LOCAL and api_key is None:
        logger.warning("anybody who reaches %s can use the model: --api-key-file asks for a key", host)
    with _vllm(options, of_vllm) if engine == "vllm" else _own_engine(options) as (loaded, started):
        if started is None or listener is None:
            return
        name = name or path.resolve().name
        service = Service(loaded, started, name=name, limits=checked, api_key=api_key)

        def say_ready() -> None:
            seconds = time.monotonic() - began
            _print_ready(service.name, url_of(listener), seconds, with_key=api_key is not None)

        run(service, listener, say_ready, drain_seconds=limits.drain_seconds)


@dataclasses.dataclass(frozen=True)
class _Options:
    path: Path
    layout: "Layout"
    model: ModelOptions
    dtype: GenerationDtype
    max_batch_size: int


@contextlib.contextmanager
def _own_engine(options: _Options) -> "Iterator[tuple[LoadedModel, TextEngine | None]]":
    """Opens the model on the ranks of the layout; rank 0 has the engine."""
    from groundup.cli.over_ranks import generation_dtypes, joined, open_over_ranks
    from groundup.inference.rank_model import engine_on
    from groundup.serve.engine_thread import in_passing_thread

    with joined(options.layout, options.model.device) as mesh, contextlib.ExitStack() as until_the_end:

        def start() -> "tuple[LoadedModel, TextEngine | None]":
            dtype, dtypes = generation_dtypes(options.dtype, options.layout, options.model.device)
            loaded = open_over_ranks(options.path, options.model, mesh, dtypes)
            started = engine_on(loaded, mesh, dtype=dtype, max_batch_size=options.max_batch_size)
            return loaded, until_the_end.enter_context(started)

        yield in_passing_thread(start) if mesh.is_first else start()


@contextlib.contextmanager
def _vllm(options: _Options, settings: Sequence[str]) -> "Iterator[tuple[LoadedModel, TextEngine]]":
    """Hands the model to vLLM, which starts its own ranks."""
    from groundup.checkpoint.formats import open_lazy
    from groundup.core.config_sources import read_overrides
    from groundup.serve.vllm_engine import vllm_engine

    if options.model.device != "auto":
        raise ConfigError("vLLM computes on what it is built for", where="--device", fix="Leave it out.")
    if options.dtype == "int8":
        raise ConfigError(
            "vLLM rounds weights in ways of its own",
            where="--dtype int8",
            fix="Choose bfloat16, and perhaps vllm.quantization=...",
        )
    layout, (tree, _) = options.layout, read_overrides(settings)
    degrees = {"tensor_parallel_size": layout.tp, "pipeline_parallel_size": layout.pp}
    with vllm_engine(
        options.path,
        open_lazy(options.path, **options.model.of_stored()),
        dtype=options.dtype,
        max_batch_size=options.max_batch_size,
        settings={**degrees, **tree.get("vllm", {})},
    ) as started:
        yield started


def _print_ready(name: str, url: str, seconds: float, *, with_key: bool) -> None:
    key = " -H 'Authorization: Bearer KEY'" if with_key else ""
    json = f"{key} -H 'Content-Type: application/json'"
    completion = '{"prompt": "Once upon a time", "max_tokens": 32, "stream": true}'
    megatron = '{"prompts": ["Hello world"], "tokens_to_generate": 8}'
    print(
        f"{name} at {url} (ready in {seconds:.1f} s); Ctrl-C ends\n\n"
        f"  curl -N {url}/v1/completions{json} -d '{completion}'\n"
        f"  curl -X PUT {url}/api{json} -d '{megatron}'\n"
        f"  groundup client {url}\n",
        flush=True,
    )
