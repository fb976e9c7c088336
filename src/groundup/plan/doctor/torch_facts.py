"""Run as a module: what PyTorch says of itself and the devices, and whether torch.compile works here."""

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from groundup.plan.doctor.torch_child import COMPILED, FACTS


def facts() -> dict[str, Any]:
    """PyTorch's version and builds, its GPUs, and the number formats of the device that a run would take."""
    import torch

    from groundup.core.errors import MachineError
    from groundup.parallel.device import choose_precision, lacks

    cuda_error = ""
    if torch.version.cuda and not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            cuda_error = " ".join(str(error).split())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    missing = {}
    for name in ("bf16", "fp16"):
        try:
            choose_precision(name, device)
        except MachineError as error:
            missing[name] = error.what
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cuda_error": cuda_error,
        "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "",
        "cudnn": torch.backends.cudnn.version() or 0 if torch.version.cuda else 0,
        "device": device.type,
        "auto": choose_precision("auto", device).name,
        "missing": missing,
        "fp8": not lacks("fp8", device),
    }


def compiled(device_name: str) -> dict[str, Any]:
    """Compiles a small function and compares what it computes."""
    import torch

    began = time.monotonic()
    try:
        x = torch.linspace(0, 1, 64, device=device_name)
        found = torch.compile(lambda x: torch.sin(x) * 2 + 1)(x)
        torch.testing.assert_close(found, torch.sin(x) * 2 + 1)
    except Exception:  # whatever the toolchain raises is what we are after
        return {"error": traceback.format_exc()}
    return {"seconds": time.monotonic() - began, "device": device_name}


def _write(folder: Path, name: str, found: dict[str, Any]) -> None:
    part = folder / f"{name}.part"
    part.write_text(json.dumps(found))
    part.rename(folder / name)


def main(folder: Path, *, compiles: bool) -> None:
    """Writes both to files of the folder, as soon as each is known."""
    try:
        found = facts()
    except ImportError as error:
        _write(folder, FACTS, {"import_error": str(error), "is_missing": error.name == "torch"})
        return
    _write(folder, FACTS, found)
    if compiles:
        _write(folder, COMPILED, compiled(found["device"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), compiles=sys.argv[2:] == ["compile"])
