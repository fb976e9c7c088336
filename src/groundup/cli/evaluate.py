"""``groundup eval``."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter


def evaluate(
    path: Path,
    *,
    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    tasks: Literal["perplexity"] = "perplexity",
    split_name: Literal["train", "validation", "test", "all"] = "all",
    split: str | None = None,
    key: str = "text",
    sequence_length: int = 0,
    batch_size: int = 8,
    max_tokens: int = 0,
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure a model.

    `perplexity` predicts every token of the data from those before it, in windows that do not overlap,
    and prints the loss (nats a token), perplexity = exp(loss), bits per byte (comparable between
    tokenizers), and the corpus's unigram entropy: the loss of a model that only knows how often each
    token occurs.

    For example:

        groundup eval runs/a --tasks perplexity --data runs/a/data --split-name test
        groundup eval exported --tasks perplexity --data wiki.test.raw --json

    Args:
        path: A run folder, one of its checkpoints, or a Hugging Face folder.
        data: A prefix of .bin and .idx files, or texts: files, folders, globs (.txt, .jsonl, .gz, .zst).
        tasks: What to measure.
        split_name: Which split of a prefix.
        split: Shares of train, validation and test over its documents; by default those of the run.
        key: The JSON field that holds the text.
        sequence_length: Tokens of a window; 0: the model's context.
        batch_size: Windows at a time; changes speed and memory, not the result.
        max_tokens: Predict only the first so many tokens; 0: all.
        precision: Format of the matrix products.
        device: Where to compute; auto takes a GPU where there is one.
        json: Print one JSON object instead of the table.
    """
    from groundup.checkpoint.open import open_model
    from groundup.core.errors import ConfigError
    from groundup.core.progress import Progress
    from groundup.eval.data import open_tokens
    from groundup.eval.perplexity import perplexity, token_byte_lengths, unigram_entropy
    from groundup.train.hardware import choose_device
    from groundup.train.precision import choose_precision

    assert tasks == "perplexity", "the command line allows nothing else"
    if batch_size < 1 or max_tokens < 0 or sequence_length < 0:
        raise ConfigError("--batch-size is 1 or more, --max-tokens and --sequence-length 0 or more")
    if split is not None and split_name == "all":
        raise ConfigError(
            "--split has no effect on all documents", fix="Add --split-name train, validation or test."
        )
    where = choose_device(device)
    loaded = open_model(path, device=where)
    tokens = open_tokens(
        data,
        loaded.tokenizer,
        split=split or _split_of_run(loaded.source),
        split_name=split_name,
        text_key=key,
    )
    total = min(len(tokens) - 1, max_tokens or len(tokens))
    with Progress("evaluate", total, "tokens") as progress, choose_precision(precision, where).autocast():
        evaluation = perplexity(
            loaded.model,
            loaded.config,
            tokens,
            byte_lengths=token_byte_lengths(loaded.tokenizer),
            sequence_length=sequence_length,
            batch_size=batch_size,
            max_tokens=max_tokens,
            on_progress=progress.add,
        )
    results: dict[str, Any] = {
        "loss": evaluation.loss,
        "perplexity": evaluation.perplexity,
        "bits_per_byte": evaluation.bits_per_byte,
        "unigram_entropy": unigram_entropy(tokens[1 : evaluation.num_tokens + 1]),
        "tokens": evaluation.num_tokens,
        "bytes": evaluation.num_bytes,
    }
    if json:
        about = {"model": str(loaded.source), "data": [str(item) for item in data], "split": split_name}
        print(json_format.dumps({"task": tasks, **about, **results}))
        return
    print(f"perplexity of {loaded.source} on {', '.join(map(str, data))} ({split_name})")
    for name, value in results.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
        print(f"  {name.replace('_', ' '):<16}{shown:>16}{_UNITS.get(name, '')}")


_UNITS = {"loss": "  nats a token", "unigram_entropy": "  nats a token", "bits_per_byte": "  bits"}


def _split_of_run(source: Path) -> str:
    """The split that a run of ours was trained with; the usual one for other models."""
    from groundup.core.manifest import Manifest
    from groundup.tokens.dataset import DataConfig

    manifest = source / "manifest.json"
    if manifest.is_file():
        about = Manifest.read(manifest, "checkpoint").about
        return str(about["config"]["data"]["split"])
    return DataConfig.split
