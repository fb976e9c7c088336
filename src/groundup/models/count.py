"""Counts of parameters and of floating-point operations, read off the axis table."""

import dataclasses

from groundup.models import ModelConfig, axes_of, build_model
from groundup.models.spec import dimensions_of


def num_parameters(config: ModelConfig) -> int:
    """Counts parameters at the true vocabulary; a tied head counts once."""
    model = build_model(config, device="meta")
    axes = axes_of(config)
    total = 0
    for name, parameter in model.named_parameters():
        rows = parameter.shape[0]
        logical_rows = config.vocab_size if dimensions_of(axes, name)[0] == "vocab" else rows
        total += parameter.numel() // rows * logical_rows
    return total


def num_matmul_parameters(config: ModelConfig) -> int:
    """Counts weights that multiply every token: matrices but no lookup tables, at the padded vocabulary."""
    model = build_model(dataclasses.replace(config, num_layers=1), device="meta")  # all layers are alike
    return sum(
        parameter.numel() * (config.num_layers if name.startswith("layers.") else 1)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.ndim == 2 and not name.startswith("embed.")
    )


def training_flops_per_token(config: ModelConfig, sequence_length: int) -> float:
    """Returns the floating-point operations a token of both passes, attention counted as causal.

    6 P for the P weights of matrix products (2 P forward, 4 P backward; Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1), and for attention, of which a causal mask leaves half:
    6 L N H T for L layers, N heads of width H, T tokens (the full square is 12 L N H T,
    PaLM, arXiv:2204.02311, appendix B).
    """
    attention = 6 * config.num_layers * config.num_heads * config.head_dim * sequence_length
    return 6 * num_matmul_parameters(config) + attention
