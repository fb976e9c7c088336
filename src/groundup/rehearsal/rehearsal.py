"""The stages of a rehearsal, each by the commands that a user would type."""

import dataclasses
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from groundup.checkpoint.native.folder import list_checkpoints, step_of
from groundup.core.config import to_yaml
from groundup.core.errors import GroundupError, TrainingError
from groundup.core.log import logger
from groundup.parallel.layout import describe_layout
from groundup.rehearsal.commands import Commands, last_words
from groundup.rehearsal.shrink import NUM_STEPS, rehearsed_config, resumed_layout, shrunk_model
from groundup.rehearsal.site import NUM_DOCUMENTS, served_site
from groundup.train.config import TrainConfig
from groundup.train.setup import checkpoints_of

_VOCAB_SIZE = 512
_PROMPT, _NEW_TOKENS = "This module", 12
_POLL_SECONDS = 0.02
_LONGEST_SECONDS = 120
_ALLOWED = 1e-4
"""Largest relative difference of the perplexities of a run and of its export."""

CRAWLED = "stages.import.sources=[pages]"
"""What makes the import stage of a recipe read the crawled pages."""

_RECIPE = """\
stages:
  - {kind: import, sources: [pages]}
  - kind: clean
    filters:
      - {kind: fix_unicode}
      - {kind: normalize_whitespace}
      - {kind: length, min_words: 50}
  - {kind: exact_dedup}
  - {kind: near_dedup, minhash: {threshold: 0.7}}
  - {kind: shuffle, seed: 1234}
keep_dropped: true
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageResult:
    """What became of one stage.

    Attributes:
        name: Of the stage.
        commands: Run in it, in the folder of the rehearsal.
        found: What it made, in a few words.
        error: Why it failed; empty where it did not.
        seconds: It took.
    """

    name: str
    commands: tuple[str, ...]
    found: str = ""
    error: str = ""
    seconds: float = 0.0


class Rehearsal:
    """The user's run, shrunk, from a web site to a service, in a folder.

    Args:
        config: The user's.
        folder: To work in; its tokenizer/, where there is one, is the run's, else one is trained.
        recipe: The user's recipe of a corpus, whose import stage is given the crawled pages.
    """

    def __init__(self, config: TrainConfig, folder: Path, *, recipe: Path | None = None) -> None:
        self._folder, self._recipe = folder.absolute(), recipe and recipe.absolute()
        self._commands = Commands(self._folder)
        self.config = rehearsed_config(
            config,
            run_dir=self._folder / "run",
            data=self._folder / "tokens_text_document",
            tokenizer=self._folder / "tokenizer",
        )

    @property
    def stages(self) -> dict[str, Callable[[], str]]:
        """Name -> what does it and says what it made, in order."""
        return {
            "crawl": self._crawl,
            "corpus": self._corpus,
            "tokenizer": self._train_tokenizer,
            "tokens": self._tokens,
            "train": self._train,
            "resume": self._resume,
            "convert": self._convert,
            "evaluate": self._evaluate,
            "serve": self._serve,
        }

    def run(self) -> Iterator[StageResult]:
        """Runs the stages until one fails; yields the outcome of each."""
        for number, (name, stage) in enumerate(self.stages.items(), start=1):
            logger.info("stage %d of %d: %s", number, len(self.stages), name)
            self._commands.typed.clear()
            began = time.monotonic()
            found, error = "", ""
            try:
                found = stage()
            except GroundupError as told:
                error = str(told)
            yield StageResult(
                name=name,
                commands=tuple(self._commands.typed),
                found=found,
                error=error,
                seconds=time.monotonic() - began,
            )
            if error:
                return

    def _crawl(self) -> str:
        with served_site() as urls:
            (self._folder / "urls.txt").write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
            near = ["--host-delay", "0", "--host-connections", "8", "--allow-host", "127.0.0.1"]
            self._commands.run("corpus", "crawl", "urls.txt", "--out", "pages", *near)
        counts = _manifest(self._folder / "pages/manifest.json")["counts"]
        fetched = counts.get("document", 0)
        if fetched < NUM_DOCUMENTS:
            raise TrainingError(f"{fetched} pages of {len(urls)} came: {counts}", where="crawl")
        return f"{fetched} documents of {len(urls)} pages; one is forbidden, one missing, one too short"

    def _corpus(self) -> str:
        recipe = self._recipe or self._folder / "recipe.yaml"
        if self._recipe is None:
            recipe.write_text(_RECIPE, encoding="utf-8")
        self._commands.run("corpus", "run", str(recipe), CRAWLED, "--out", "corpus")
        counts = _manifest(self._folder / "corpus/manifest.json")["counts"]
        return f"{counts['documents']} documents kept of {counts['documents_read']}"

    def _train_tokenizer(self) -> str:
        if (self._folder / "tokenizer").is_dir():
            return "that of the run's data"
        size = ["--vocab-size", str(_VOCAB_SIZE)]
        self._commands.run("tokenizer", "train", "corpus", "--out", "tokenizer", *size)
        return f"{_VOCAB_SIZE} ids"

    def _tokens(self) -> str:
        self._commands.run("tokens", "build", "corpus", "--prefix", "tokens", "--tokenizer", "tokenizer")
        counts = _manifest(self._folder / "tokens_text_document.json")["counts"]
        return f"{counts['tokens']:,} tokens"

    def _train(self) -> str:
        """Trains until the first checkpoint stands, and kills all ranks."""
        small = shrunk_model(self.config)
        (self._folder / "run.yaml").write_text(to_yaml(small), encoding="utf-8")
        with self._commands.started("train", "run.yaml") as (ranks, log):
            while not self._saved_steps() and ranks.poll() is None:
                time.sleep(_POLL_SECONDS)
            code = ranks.poll()
        if code is not None:
            raise TrainingError(f"it ended by itself: {last_words(log)}", where=log)
        shape = f"{small.model.num_layers} layers of width {small.model.hidden_size}"
        return (
            f"{shape}; {describe_layout(small.layout)}; killed after step {self._saved_steps()[-1]} was saved"
        )

    def _saved_steps(self) -> list[int]:
        return [step_of(folder) for folder in list_checkpoints(checkpoints_of(self.config))]

    def _resume(self) -> str:
        """Trains on to the end, on another number of ranks."""
        old, new = self.config.layout, resumed_layout(self.config.layout)
        names = [
            name for name in ("dp", "cp", "tp", "pp", "shard") if getattr(new, name) != getattr(old, name)
        ]
        self._commands.run("train", "run.yaml", *(f"layout.{name}={getattr(new, name)}" for name in names))
        records = map(orjson.loads, (self._folder / "run/metrics.jsonl").read_bytes().splitlines())
        losses = {one["step"]: one["loss"] for one in records if one["kind"] == "train"}
        missing = sorted(set(range(1, NUM_STEPS + 1)) - losses.keys())
        if missing:
            raise TrainingError(f"no loss of step {missing[0]} is recorded", where=self.config.run_dir)
        first, last = losses[1], losses[NUM_STEPS]
        if not last < first:
            raise TrainingError(
                f"the loss did not fall: {first:.3f}, then {last:.3f}", where=self.config.run_dir
            )
        return f"{describe_layout(new)}; loss {first:.3f} at step 1, {last:.3f} at step {NUM_STEPS}"

    def _convert(self) -> str:
        self._commands.run("convert", "run", "huggingface", "--to", "hf")
        return "a Hugging Face folder, read back and equal"

    def _evaluate(self) -> str:
        own, exported = (self._perplexity(name) for name in ("run", "huggingface"))
        if abs(own - exported) > _ALLOWED * own:
            raise TrainingError(f"perplexity {own} of the run, {exported} of its export", where="evaluate")
        return f"perplexity {own:.2f} on held-out documents, the export's too"

    def _perplexity(self, model: str) -> float:
        split = ["perplexity.split_name=validation", f"perplexity.split={self.config.data.split}"]
        data = ["--data", "tokens_text_document", *split]
        printed = self._commands.run("eval", model, "--tasks", "perplexity", *data, "--json")
        return float(json.loads(printed)["perplexity"])

    def _serve(self) -> str:
        greedy = ["--temperature", "0", "--max-new-tokens", str(_NEW_TOKENS)]
        own = self._commands.run("generate", "run", "--prompt", _PROMPT, *greedy)
        with self._commands.started("serve", "huggingface", "--port", "0") as (service, log):
            text = _completion(_url_of(service, log))
            service.send_signal(signal.SIGTERM)
            code = service.wait(timeout=_LONGEST_SECONDS)
        if code:
            raise TrainingError(f"the service ended with exit code {code}: {last_words(log)}", where=log)
        if text.strip() not in own:
            raise TrainingError(f"served {text!r}, generated {own!r}", where="serve")
        return f"{_PROMPT!r} goes on with {text!r}, as groundup generate says"


def _manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found


def _url_of(service: "subprocess.Popen[str]", log: Path) -> str:
    """Waits until the service has said where it is."""
    assert service.stdout is not None, "it is piped"
    for line in service.stdout:
        if found := re.search(r"at (http://\S+) \(ready", line):
            return found[1]
    raise TrainingError(f"the service ended: {last_words(log)}", where=log)


def _completion(url: str) -> str:
    asked = {"prompt": _PROMPT, "max_tokens": _NEW_TOKENS, "temperature": 0}
    request = urllib.request.Request(  # noqa: S310  # our own service
        f"{url}/v1/completions", orjson.dumps(asked), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_LONGEST_SECONDS) as answer:  # noqa: S310
        return str(orjson.loads(answer.read())["choices"][0]["text"])
