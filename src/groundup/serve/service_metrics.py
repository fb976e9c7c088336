"""What the service counts, for Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from groundup.inference.engine import Engine
from groundup.inference.sequence import Delta
from groundup.serve.text_engine import TextEngine

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_PATHS = frozenset(
    {"/", "/api", "/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"}
)


class ServiceMetrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self, engine: TextEngine) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "groundup_http_requests", "Answered requests.", ["path", "status"], registry=self.registry
        )
        self.texts = Gauge("groundup_texts", "Texts in work or waiting.", registry=self.registry)
        self.aborted = Counter(
            "groundup_texts_aborted", "Texts whose client went away.", registry=self.registry
        )
        self.finished = Counter(
            "groundup_texts_finished", "Texts that ended, by why.", ["reason"], registry=self.registry
        )
        self.prompt_tokens = Counter("groundup_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self.new_tokens = Counter("groundup_new_tokens", "Generated tokens.", registry=self.registry)
        self.first_token = Histogram(
            "groundup_time_to_first_token_seconds",
            "From the arrival of a text to its first token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.next_token = Histogram(
            "groundup_inter_token_seconds",
            "Between two tokens of a text.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        if isinstance(engine, Engine):
            self._add_gauges(engine)

    def _add_gauges(self, engine: Engine) -> None:
        scheduler, blocks = engine.scheduler, engine.blocks
        for name, text, read in (
            ("groundup_texts_running", "Texts of the running batch.", lambda: len(scheduler.running)),
            ("groundup_texts_waiting", "Texts that wait for a place in it.", lambda: len(scheduler.waiting)),
            ("groundup_cache_blocks", "Blocks of the key/value cache.", lambda: blocks.num_blocks),
            ("groundup_cache_blocks_free", "Those without an owner.", lambda: blocks.num_free),
            ("groundup_preemptions", "Texts that gave way to others.", lambda: scheduler.num_preemptions),
        ):
            Gauge(name, text, registry=self.registry).set_function(read)

    def count_request(self, path: str, status: int) -> None:
        """Counts an answer; status 0 when the client did not wait for one."""
        self.requests.labels(path if path in _PATHS else "other", status).inc()

    def observe(self, delta: Delta, since_start: float, since_last: float) -> None:
        """Counts what a step added to a text.

        Args:
            delta: What it added.
            since_start: Seconds since the text arrived.
            since_last: Seconds since its last token; 0 when there is none.
        """
        if delta.ids:
            self.new_tokens.inc(len(delta.ids))
            if since_last:
                self.next_token.observe(since_last)
            else:
                self.first_token.observe(since_start)
        if delta.finished:
            self.finished.labels(delta.finished).inc()

    def render(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self.registry)
