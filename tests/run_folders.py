"""Run folders as training leaves them, written down at once."""

import math
from pathlib import Path

import orjson
import yaml


def write_run_folder(folder: Path, *, steps: int = 40, planned: int = 40, **config: object) -> Path:
    """A run with a loss that falls, validations, scores, samples, a restart, a skip and a rollback."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = {
        "run_dir": str(folder),
        "num_steps": planned,
        "model": {"kind": "gpt2", "vocab_size": 300},
        "optimizer": {"lr": 1e-3},
        **config,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    records = [_train(step) for step in range(1, steps + 1)]
    for step in range(10, steps + 1, 10):
        loss = 5 - step / 20
        records.append(
            {
                "kind": "validation",
                "step": step,
                "loss": loss,
                "perplexity": math.exp(loss),
                "num_tokens": 640,
            }
            | {"bits_per_byte": loss / 2}
        )
        records.append({"kind": "eval/lambada", "step": step, "accuracy": step / 100})
        records.append({"kind": "sample", "step": step, "text": f"Once <b>upon</b> {step}</script>"})
    if steps >= 20:
        spike = {"kind": "outlier", "loss": 9.5, "grad_norm": 44.0, "reason": "the loss is far above"}
        records.append({**spike, "step": 12, "outlier_step": 13, "action": "skip"})
        records.append({**spike, "step": 15, "outlier_step": 19, "action": "rollback"})
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in records))
    (folder / "starts.jsonl").write_text('{"step": 0, "time": 1.0}\n{"step": 16, "time": 2.0}\n')
    return folder


def _train(step: int) -> dict[str, object]:
    return {
        "kind": "train",
        "step": step,
        "loss": None if step == 14 else 5 - step / 20 + 0.1 * math.sin(step),
        "grad_norm": 1 + 1 / step,
        "lr": 1e-3 * (1 - step / 100),
        "tokens_per_second": 3600.0 if step <= 20 else 7200.0,
        "tokens": 36000 * step,
        "memory_bytes": 2_000_000_000 + step,
        "mfu": 0.0,
        "loss_scale": 1.0,
        "batch_size": 4,
        "skipped_steps": int(step >= 30),
        "eta_seconds": 1.0,
    }
