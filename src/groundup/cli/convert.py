"""``groundup convert``."""

from pathlib import Path
from typing import Literal

_TOLERANCE = 1e-5


def convert(
    path: Path,
    out: Path,
    *,
    to: Literal["hf"],
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
) -> None:
    """Write a model in another format, and prove that it is the same model.

    `--to hf` writes a Hugging Face folder: config.json, generation_config.json, model.safetensors and the
    tokenizer. It loads with AutoModelForCausalLM.from_pretrained(OUT) and AutoTokenizer, and every
    groundup command takes it too. Afterwards the folder is read back and its logits are compared with
    the model's on a fixed batch; a difference beyond 1e-5 is an error.

    For example:

        groundup convert runs/quickstart/model exported --to hf
        groundup convert runs/a/checkpoints/step_0001000 exported-bf16 --to hf --dtype bfloat16

    Args:
        path: A run folder, one of its checkpoints, or a Hugging Face folder.
        out: The folder to write: new, empty, or an earlier export, which is replaced.
        to: The format.
        dtype: Of the written weights; the 16-bit formats halve the size and round.
    """
    import torch

    from groundup.checkpoint.huggingface import read_huggingface, torch_dtype, write_huggingface
    from groundup.checkpoint.open import open_model
    from groundup.checkpoint.parity import compare, rounded
    from groundup.core.errors import CheckpointError

    assert to == "hf", "the command line allows nothing else"
    loaded = open_model(path, device=torch.device("cpu"))
    write_huggingface(loaded, out, dtype=dtype)
    reopened = read_huggingface(out)
    parity = compare(rounded(loaded, torch_dtype(dtype)), reopened)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"wrote {out} ({size / 1e6:.1f} MB, {dtype}, from {loaded.source})")
    print(
        f"parity: largest difference of logits {parity.max_difference:.1e},"
        f" top-1 agreement {parity.top1_agreement:.1%}"
    )
    if dtype != "float32":
        rounding = compare(loaded, reopened)
        print(
            f"rounding to {dtype}: largest difference of logits {rounding.max_difference:.1e},"
            f" top-1 agreement {rounding.top1_agreement:.1%}"
        )
    if not parity.max_difference <= _TOLERANCE:
        raise CheckpointError(
            f"the written model differs from the original: logits by {parity.max_difference:.1e},"
            f" allowed are {_TOLERANCE:.0e}",
            where=out,
            fix="Do not use it. This is a fault of groundup: please report it with the model's config.",
        )
    print(f"Next: transformers.AutoModelForCausalLM.from_pretrained({str(out)!r})")
