"""``groundup convert``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from groundup.checkpoint.formats import FORMATS, format_named, require_effect
from groundup.checkpoint.peft_settings import ADAPTER
from groundup.cli.card_options import NO_CARD_FLAGS, CardFlags
from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    FormatName = str
    from groundup.checkpoint.formats import CheckpointFormat
    from groundup.checkpoint.lazy import DtypeName, LazyModel
    from groundup.checkpoint.parity import Parity
    from groundup.checkpoint.proof import Proof
else:
    FormatName = Literal[*(entry.name for entry in FORMATS)]

_TO = f"The format: {'; '.join(f'{entry.name}, {entry.about}' for entry in FORMATS)}."


def convert(
    path: Path,
    out: Path,
    *,
    to: Annotated[FormatName, Parameter(help=_TO)],
    dtype: Literal["source", "float32", "bfloat16", "float16"] = "source",
    tp: int = 1,
    pp: int = 1,
    names: Literal["legacy", "core", "core-fused"] = "legacy",
    shards: str = "1",
    merge_adapter: Path | None = None,
    adapter_only: Annotated[bool, Parameter(negative="")] = False,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    moments: bool = True,
    ema: Annotated[bool, Parameter(negative="")] = False,
    card: CardFlags = NO_CARD_FLAGS,
) -> None:
    """Write a model in another format, and prove that it is the same model.

    Reads run folders and checkpoints of groundup, Hugging Face folders (safetensors or .bin), Megatron-LM's
    checkpoints, of any version and parallelism, with old or new names, and nanoGPT's; nothing in them is
    run. Weights pass one tensor at a time, so that no model is too large for the memory. Before it gets its
    name, the result is read back and compared with the original: logits in fp32, perplexity of a short
    text; a difference beyond 1e-5 of the largest logit is an error, which leaves nothing behind.

    A Hugging Face folder gets a model card, README.md: architecture, data down to their sources, the stages
    of training with their figures, scores, limits, how to use it; from the records of the run and of those
    that it began with. What no record tells is said to be unknown. `groundup push` uploads the folder.

    For example:

        groundup convert runs/quickstart/model exported --to hf
        groundup convert runs/a/checkpoints/step_0001000 exported-bf16 --to hf --dtype bfloat16 --shards 5GB
        groundup convert checkpoints/gpt2_345m merged --to megatron --tokenizer gpt2
        groundup convert exported for-four-gpus --to megatron --tp 2 --pp 2 --names core
        groundup convert out-shakespeare/ckpt.pt exported --to hf --tokenizer gpt2
        groundup convert smollm merged --to hf --merge-adapter runs/chat/adapter
        groundup convert runs/chat adapter --to hf --adapter-only
        groundup convert runs/chat exported --to hf --license apache-2.0 --language en

    Args:
        path: The model.
        out: The folder to write: new, empty, or (but for native) an earlier export, which is replaced.
        to: The format, by its name.
        dtype: Of the written weights; by default as they are. The 16-bit formats round fp32.
        tp: Tensor parallelism of the Megatron-LM that will read it.
        pp: Pipeline stages of the same.
        names: Its names: legacy (until 2024), core (megatron.core) or core-fused (with Transformer Engine).
        shards: Safetensors files of a Hugging Face folder: how many, or their largest size, like 5GB.
        merge_adapter: Folder of an adapter (LoRA) of the model, as PEFT saves it, to add to the weights. A
            run that trained one, and an adapter that names its base, are merged without it; all in float32.
        adapter_only: Write the adapter that a run trained, alone, as PEFT reads it.
        tokenizer: Folder, file or name, where the model has none or another is meant; none where its ids are
            all there is (NullTokenizer), which are then written as numbers.
        vocab_size: True vocabulary of a model of Megatron-LM's, where its tokenizer has fewer ids.
        moments: Keep the optimizer's state, from Megatron-LM or native to these (to the latter's legacy
            names, of AdamW).
        ema: Write the average of the weights that a run with ema.decay keeps; without optimizer state.
    """
    words = ["convert", str(path), str(out), "--to", to]
    words += _given(
        {"dtype": dtype, "tp": tp, "pp": pp, "names": names, "shards": shards, "vocab_size": vocab_size},
        {"merge_adapter": merge_adapter, "tokenizer": tokenizer, "adapter_only": adapter_only, "ema": ema},
    )
    if adapter_only:
        write_adapter(path, out, to, card=card, words=words)
        print(f"Next: groundup generate {out} --prompt '...'")
        return
    written = format_named(to)
    options = require_effect(written, {"tp": tp, "pp": pp, "names": names, "shards": shards})
    if card.given and not written.has_card:
        raise ConfigError(f"{card.given[0]} is for the card that goes with --to hf", where="command line")
    proof = write_model(
        path,
        out,
        written,
        options,
        dtype=dtype,
        adapter=merge_adapter,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        moments=moments and written.keeps_optimizer and not ema,
        ema=ema,
        card=card,
        words=words,
    )
    if next_step := written.codec.next_step(out, proof.is_exact):
        print(f"Next: {next_step}")


def write_model(
    path: Path,
    out: Path,
    written: "CheckpointFormat",
    options: dict[str, Any],
    *,
    dtype: "Literal['source'] | DtypeName" = "source",
    adapter: Path | None = None,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    moments: bool = False,
    ema: bool = False,
    card: CardFlags,
    words: Sequence[str],
) -> "Proof":
    """Writes a model as ``convert`` does, and tells what was written; see there.

    Args:
        path: The model.
        out: The folder.
        written: Its format.
        options: Of the format's writer.
        dtype: Of the weights.
        adapter: To merge.
        tokenizer: In place of the model's.
        vocab_size: True vocabulary of a model of Megatron-LM's.
        moments: Whether to keep the optimizer's state.
        ema: Write the average of the weights.
        card: For the model card, where the format has one.
        words: The command line, for the same.
    """
    from groundup.checkpoint.formats import open_lazy
    from groundup.checkpoint.lazy import in_dtype, torch_dtype, without_moments
    from groundup.checkpoint.proof import Proof
    from groundup.core.progress import Progress

    source = open_lazy(
        path, adapter=adapter, tokenizer=tokenizer, vocab_size=vocab_size, moments=moments, ema=ema
    )
    if tokenizer is not None:
        _warn_of_another_tokenizer(source, tokenizer)
    source = source if moments else without_moments(source)
    stored = source if dtype == "source" else in_dtype(source, torch_dtype(dtype))
    total = sum(tensor.size_bytes for tensor in (*stored.weights.values(), *stored.moments.values()))
    proof = Proof(source=source, stored=stored, out=out, keeps_masters=written.keeps_masters)
    if written.keeps_masters:
        options["masters"] = source.weights
    if written.has_card:
        from groundup.report.model_card import model_card

        merged = adapter or (path if (path / ADAPTER).is_file() else None)
        options["card"] = model_card(stored, card.options(out, words), merged=merged)
    with Progress(f"convert {path}", total, "B") as progress:
        written.codec.write(stored, out, on_write=progress.add, check=proof, **options)
    _report(proof, dtype)
    return proof


def write_adapter(path: Path, out: Path, to: str, *, card: CardFlags, words: Sequence[str]) -> None:
    """Writes the adapter that a run trained as ``convert --adapter-only`` does, and tells what was written.

    Args:
        path: The run, or a checkpoint of it.
        out: The folder.
        to: The format that was asked for.
        card: For the model card.
        words: The command line, for the same.
    """
    from groundup.checkpoint.formats import open_lazy, peft_adapter
    from groundup.checkpoint.native.model import is_native, open_native_adapter
    from groundup.report.model_card import model_card

    if to != "hf":
        raise ConfigError(
            "--adapter-only writes PEFT's format, which goes with --to hf", where="command line"
        )
    adapter = open_native_adapter(path) if is_native(path) else None
    if adapter is None:
        raise ConfigError(
            "holds a whole model" if not (path / ADAPTER).is_file() else "is such an adapter already",
            where=path,
            fix="Name a run that was finetuned with lora.rank, or leave out --adapter-only.",
        )
    model = open_lazy(path)
    text = model_card(model, card.options(out, words), adapter=adapter.about)
    peft_adapter().write_adapter(adapter, model, out, card=text, base=card.base_model)
    print(f"wrote {out}: an adapter of {adapter.about.base}, of rank {adapter.about.rank}")


def _given(values: Mapping[str, object], more: Mapping[str, object]) -> list[str]:
    """The flags of a command line whose values are not the usual ones, as its words."""
    words: list[str] = []
    for name, value in ({**values, **more}).items():
        if value not in (None, False, 1, "1", "source", "legacy"):
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words


def _warn_of_another_tokenizer(source: "LazyModel", tokenizer: Path) -> None:
    from groundup.core.log import logger

    if source.tokenizer.vocab_size != source.config.vocab_size:
        logger.warning(
            "the tokenizer %s has %d ids and the model %d: is it the model's own?",
            tokenizer,
            source.tokenizer.vocab_size,
            source.config.vocab_size,
        )


def _report(proof: "Proof", dtype: str) -> None:
    from groundup.checkpoint.lazy import dtype_name

    stored, out = proof.stored, proof.out
    dtypes = sorted({dtype_name(tensor.dtype) for tensor in stored.weights.values()})
    size_bytes = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    kept = ", with the optimizer's moments" if proof.has_moments else ""
    print(
        f"wrote {out} ({size_bytes / 1e6:.1f} MB, {' and '.join(dtypes)}{kept}, from {proof.source.source})"
    )
    assert proof.parity, "the writers called it"
    print(f"parity: {_in_words(proof.parity)}")
    if proof.rounding:
        print(f"rounding to {dtype}: {_in_words(proof.rounding)}")


def _in_words(parity: "Parity") -> str:
    before, after = parity.perplexities
    return (
        f"largest difference of logits {parity.max_difference:.1e},"
        f" top-1 agreement {parity.top1_agreement:.1%}, KL divergence {parity.divergence:.1e},"
        f" perplexity of a short text {before:.6g} and {after:.6g}"
    )
