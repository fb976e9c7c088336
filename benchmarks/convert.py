"""Conversions of a random model: bytes a second and the most memory that each process took.

python benchmarks/convert.py --layers 32 --hidden 4096 --ffn 11008 FOLDER   # 7B in bfloat16: 14 GB a copy

Makes a Llama in a Hugging Face folder and converts it to native, to Megatron-LM's 2 x 2, back to native
and back to Hugging Face; the last must be the first byte for byte. Time includes reading back and the
comparison of logits; memory that maps files (which the system takes back when it needs it) is told apart.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from groundup.checkpoint.huggingface import write_stored
from groundup.checkpoint.stored import StoredModel, StoredTensor, logical_shapes
from groundup.core.files import checksum
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer import load_tokenizer

_INTERVAL_SECONDS = 0.02


def main() -> None:
    """Makes the model, converts it in a circle, prints one JSON record a conversion."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="to work in; keeps five copies of the model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--ffn", type=int, default=2816)
    parser.add_argument("--vocab", type=int, default=32000)
    arguments = parser.parse_args()
    config = LlamaConfig(
        vocab_size=arguments.vocab,
        max_sequence_length=4096,
        num_layers=arguments.layers,
        hidden_size=arguments.hidden,
        num_heads=arguments.hidden // 64,
        num_kv_heads=arguments.hidden // 64,
        ffn_size=arguments.ffn,
    )
    size_bytes = make(config, arguments.folder / "first")
    for source, target, *settings in (
        ("first", "native", "--to", "native"),
        ("native", "megatron", "--to", "megatron", "--tp", "2", "--pp", "2"),
        ("megatron", "again", "--to", "native"),
        ("again", "last", "--to", "hf"),
    ):
        command = ["convert", str(arguments.folder / source), str(arguments.folder / target), *settings]
        seconds, resident, own = measured([sys.executable, "-m", "groundup", *command])
        record = {
            "conversion": f"{source} -> {target}",
            "model_gb": round(size_bytes / 1e9, 3),
            "seconds": round(seconds, 2),
            "gb_per_second": round(size_bytes / 1e9 / seconds, 3),
            "peak_resident_gb": round(resident / 1e6, 3),
            "peak_without_mapped_files_gb": round(own / 1e6, 3),
        }
        print(json.dumps(record), flush=True)
    first, last = (checksum(arguments.folder / name / "model.safetensors") for name in ("first", "last"))
    print(json.dumps({"round_trip_is_byte_identical": first == last}))
    sys.exit(first != last)


def make(config: LlamaConfig, folder: Path) -> int:
    """Writes a random model in bfloat16, tensor by tensor; returns its bytes."""

    def tensor(shape: tuple[int, ...]) -> StoredTensor:
        def read() -> torch.Tensor:
            if len(shape) == 1:
                return torch.ones(shape, dtype=torch.bfloat16)
            return (torch.randn(shape) * 0.02).bfloat16()

        return StoredTensor(shape=shape, dtype=torch.bfloat16, read=read)

    weights = {name: tensor(shape) for name, shape in logical_shapes(config).items()}
    tokenizer = load_tokenizer("bytes")
    write_stored(
        StoredModel(config=config, weights=weights, tokenizer=tokenizer, source=Path("random")), folder
    )
    return sum(weight.size_bytes for weight in weights.values())


def measured(command: list[str]) -> tuple[float, int, int]:
    """Runs a command; seconds, peak of resident memory, and of that without mapped files (kB)."""
    began = time.perf_counter()
    resident = own = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            values = dict(line.split(":", 1) for line in status.splitlines())
            resident = max(resident, int(values.get("VmRSS", "0 kB").split()[0]))
            own = max(own, int(values.get("RssAnon", "0 kB").split()[0]))
            time.sleep(_INTERVAL_SECONDS)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return time.perf_counter() - began, resident, own


if __name__ == "__main__":
    main()
