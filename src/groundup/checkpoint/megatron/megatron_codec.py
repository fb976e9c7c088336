"""Megatron-LM's checkpoints as a format among the others."""

from collections.abc import Iterator
from pathlib import Path

from groundup.checkpoint.families import family_of, with_biases
from groundup.checkpoint.formats import Codec, Variant
from groundup.checkpoint.lazy import LazyModel, without_moments
from groundup.checkpoint.megatron.optimizer import find_unwritable_state
from groundup.checkpoint.megatron.parameters import Naming
from groundup.checkpoint.megatron.ranks import is_megatron
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import find_indivisible, write_megatron


def _kept(stored: LazyModel, *, names: Naming = "legacy", tp: int = 1, pp: int = 1) -> LazyModel:
    stored = with_biases(stored)
    return without_moments(stored) if find_unwritable_state(stored, names) else stored


def _variants(stored: LazyModel) -> Iterator[Variant]:
    """All names, at tensor and pipeline parallelism of 2 where the model divides; legacy ones at 1 too."""
    tp = 1 if find_indivisible(stored.config, tp=2, pp=1) else 2
    pp = 1 if find_indivisible(stored.config, tp=1, pp=2) else 2
    tour = "core" if family_of(stored.config).megatron.why_not_legacy(stored.config) else "legacy"
    names: tuple[tuple[Naming, int, int], ...] = (
        ("legacy", tp, pp),
        ("core", tp, pp),
        ("core-fused", tp, pp),
    )
    if (tp, pp) != (1, 1):
        names = (("legacy", 1, 1), *names)
    for naming, ranks, stages in names:
        yield Variant(
            label=f" {naming} {ranks}x{stages}",
            options={"names": naming, "tp": ranks, "pp": stages},
            tour=f" {ranks}x{stages}" if (naming, ranks, stages) == (tour, tp, pp) else None,
        )


def _next_step(folder: Path, is_exact: bool) -> str | None:
    options = "--no-load-rng --override-opt_param-scheduler"
    return f"let Megatron-LM load it with {options}" if is_exact else None


CODEC = Codec(
    detect=is_megatron,
    open=open_megatron,
    write=write_megatron,
    kept=_kept,
    variants=_variants,
    next_step=_next_step,
)
