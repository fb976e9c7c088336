"""torch.compile where the machine has what it needs; else eager, with a warning that says what is missing."""

import functools
import shutil

import torch

from groundup.core.log import logger
from groundup.models import Model
from groundup.parallel.layout import Layout


def is_compiled(setting: bool | None, layout: Layout, device: torch.device) -> bool:
    """Whether a run compiles its layers; None: on a GPU, where ranks do not share layers."""
    if setting is not None:
        return setting
    return device.type == "cuda" and layout.tp == layout.pp == layout.cp == 1


def compile_layers(model: Model, device: torch.device) -> bool:
    """Compiles each transformer layer in place; returns whether it did.

    One layer's graph serves all, so compiling takes seconds instead of minutes. A first run on a tiny
    function finds out whether the machine's compiler works; if not, the model stays eager. The model may
    still be on meta.
    """
    reason = why_not_compiled(device)
    if reason:
        logger.warning("training without torch.compile: %s", reason)
        return False
    for layer in model.layers.values():
        layer.compile()
    return True


@functools.cache
def why_not_compiled(device: torch.device) -> str:
    """Returns why torch.compile does not work here, or an empty string; found out once, by compiling."""
    if device.type == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return "no C++ compiler is on the PATH (on Debian: apt install g++)"
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever the toolchain raises, eager works
        message = str(error).strip().splitlines()
        hint = ""
        if "-lcuda" in str(error):
            hint = (
                "; the linker does not find libcuda: add its folder to LIBRARY_PATH"
                " (often /usr/lib/wsl/lib or /usr/local/cuda/compat)"
            )
        return f"{type(error).__name__}: {message[0] if message else 'no message'}{hint}"
    finally:
        torch._dynamo.reset()
    return ""
