"""The architectures that Megatron-LM's arguments can say: those that are models here, and what others lack.

The guide to conversion shows both tables. Sources: megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py of d98e8a6 (2026-08), megatron/arguments.py of 992da75.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from groundup.checkpoint.families.llama_rope import is_rotary
from groundup.core.errors import CheckpointError

_OTHERWISE = "Train and evaluate it with Megatron-LM, or choose another model."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """What tells apart the models that are made of the usual parts.

    Attributes:
        positions: How tokens know their place, as ``--position-embedding-type`` has it.
        norm: As ``--normalization``.
        mlp: Its activation, of a gated MLP swiglu.
        biases: Linear layers that have biases.
        grouped: Whether query heads share key/value heads.
    """

    positions: str
    norm: str
    mlp: Literal["gelu", "swiglu"]
    biases: Literal["none", "qkv", "all"]
    grouped: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """A combination of the usual parts.

    Attributes:
        models: Some that are of this architecture.
        flags: By which Megatron-LM builds it.
        traits: Values that decide it, by the names of ``Traits``; those that are not here may be any.
        kind: Of the models here that it is read as; None for none.
        about: How it is held, or what is missing here.
    """

    models: str
    flags: str
    traits: Mapping[str, Any]
    kind: str | None = None
    about: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignPart:
    """A part that no model here has.

    Attributes:
        key: Of the arguments.
        expected: The only value of it that is held; None and absence are too.
        models: Some that have the part.
        about: What is missing here.
    """

    key: str
    expected: Any
    models: str
    about: str


_ROPE = "--position-embedding-type rope"
ARCHITECTURES = (
    Architecture(
        models="GPT-2, GPT-3",
        flags="(none)",
        traits={"positions": "learned_absolute", "norm": "LayerNorm", "mlp": "gelu", "grouped": False},
        kind="gpt2",
        about="linear biases that are off are read as biases of 0",
    ),
    Architecture(
        models="Llama, Mistral, Qwen2",
        flags=f"{_ROPE} --swiglu --normalization RMSNorm --disable-bias-linear [--add-qkv-bias]",
        traits={"positions": "rope", "norm": "RMSNorm", "mlp": "swiglu", "biases": ("none", "qkv")},
        kind="llama",
        about="all of a head's dimensions rotated",
    ),
    Architecture(
        models="StableLM",
        flags=f"{_ROPE} --swiglu [--rotary-percent P] [--disable-bias-linear [--add-qkv-bias]]",
        traits={"positions": "rope", "norm": "LayerNorm", "mlp": "swiglu"},
        kind="stablelm",
        about="`linear_bias` none, qkv or all; the last has no class in transformers",
    ),
    Architecture(
        models="Llamas with biases",
        flags=f"{_ROPE} --swiglu --normalization RMSNorm",
        traits={"positions": "rope", "norm": "RMSNorm", "mlp": "swiglu"},
        about="biases in all linear layers beside RMSNorm (`--disable-bias-linear` leaves them out)",
    ),
    Architecture(
        models="StarCoder 2",
        flags=_ROPE,
        traits={"positions": "rope", "mlp": "gelu"},
        about="rotary positions with an MLP that is not gated",
    ),
    Architecture(
        models="StarCoder 1",
        flags="--group-query-attention",
        traits={"positions": "learned_absolute", "mlp": "gelu", "norm": "LayerNorm", "grouped": True},
        about="learned positions with key/value heads that are shared",
    ),
    Architecture(
        models="mixtures of GPT-2 and Llama",
        flags="--swiglu, or --normalization RMSNorm",
        traits={"positions": "learned_absolute"},
        about="learned positions with SwiGLU or RMSNorm",
    ),
    Architecture(
        models="models without positions (NoPE)",
        flags="--position-embedding-type none, --no-position-embedding",
        traits={"positions": "none"},
        about="a model without positions",
    ),
    Architecture(
        models="T5, BLOOM, Qwen2-VL, gpt-oss",
        flags="--position-embedding-type relative, mrope or yarn",
        traits={},
        about="positions that are neither learned nor plainly rotary",
    ),
)
"""The first whose traits fit is a checkpoint's."""

FOREIGN_PARTS = tuple(
    ForeignPart(key=key, expected=expected, models=models, about=about)
    for key, expected, models, about in (
        ("squared_relu", False, "Nemotron, Persimmon", "squared ReLU in the MLP"),
        ("apply_layernorm_1p", False, "Nemotron", "LayerNorm that adds 1 to its weights"),
        ("gpt_j_residual", False, "GPT-NeoX, GPT-J, Pythia", "attention and MLP in parallel"),
        ("parallel_attn", False, "Falcon", "attention and MLP in parallel"),
        ("apply_residual_connection_post_layernorm", False, "BLOOM", "residuals taken behind the norm"),
        ("rotary_interleaved", False, "GPT-J, ChatGLM", "rotary positions of neighbouring dimensions"),
        ("qk_layernorm", False, "Qwen3, OLMo 2", "norms of queries and keys"),
        ("qk_l2_norm", False, "Llama 4", "norms of queries and keys"),
        ("no_rope_freq", None, "Llama 4, SmolLM3", "layers without positions between others"),
        ("window_size", None, "Gemma, gpt-oss", "attention within a sliding window"),
        ("softmax_type", "vanilla", "gpt-oss", "attention sinks"),
        ("softmax_scale", None, "Granite", "another scale of attention"),
        ("quick_geglu", False, "gpt-oss", "gated GELU in the MLP"),
        ("glu_linear_offset", 0.0, "gpt-oss", "an offset in the gated MLP"),
        ("activation_func_clamp_value", None, "gpt-oss", "a gated MLP whose values are clamped"),
        (
            "use_mup",
            False,
            "models in maximal update parametrization",
            "factors of width in the forward pass",
        ),
        ("num_experts", None, "Mixtral, DeepSeek, Qwen3-MoE", "a mixture of experts"),
        ("multi_latent_attention", False, "DeepSeek V2 and V3", "latent attention"),
        ("mtp_num_layers", None, "DeepSeek V3", "layers that predict further tokens"),
        ("attention_output_gate", False, "Qwen3-Next", "a gate behind attention"),
        ("experimental_attention_variant", None, "Qwen3-Next, DeepSeek V3.2", "another attention"),
        ("linear_attention_freq", None, "Qwen3-Next", "layers of linear attention"),
        ("hybrid_layer_pattern", None, "Nemotron-H, Jamba", "layers of Mamba"),
        ("hybrid_override_pattern", None, "Nemotron-H, Jamba", "layers of Mamba"),
        ("heterogeneous_layers_config_path", None, "Llama-Nemotron", "layers of different shapes"),
    )
)


def kind_of(args: Mapping[str, Any], where: Path) -> str:
    """The kind of our models that a checkpoint's arguments describe.

    Raises:
        CheckpointError: None: names the architecture and what is missing here.
    """
    for part in FOREIGN_PARTS:
        if (value := args.get(part.key, part.expected)) not in (part.expected, None):
            raise CheckpointError(
                f"{part.key} = {value!r} is not supported, only {part.expected!r}: no model here has"
                f" {part.about} (as in {part.models})",
                where=where,
                fix=_OTHERWISE,
            )
    traits = dataclasses.asdict(traits_of(args))
    found = next(
        row for row in ARCHITECTURES if all(_fits(traits[key], row.traits[key]) for key in row.traits)
    )
    if found.kind is None:
        said = ", ".join(f"{name} {value}" for name, value in traits.items() if name != "grouped")
        raise CheckpointError(
            f"its args describe an architecture like that of {found.models} ({said}), which is not supported:"
            f" no model here has {found.about}",
            where=where,
            fix=_OTHERWISE,
        )
    return found.kind


def traits_of(args: Mapping[str, Any]) -> Traits:
    """What a checkpoint's arguments say of the usual parts; absence is Megatron-LM's default."""
    positions = args.get("position_embedding_type") or "learned_absolute"
    if is_rotary(args):
        positions = "rope"
    elif positions == "learned_absolute" and not args.get("add_position_embedding", True):
        positions = "none"
    in_all = bool(args.get("add_bias_linear", True))
    return Traits(
        positions=positions,
        norm=args.get("normalization") or "LayerNorm",
        mlp="swiglu" if args.get("swiglu") else "gelu",
        biases="all" if in_all else "qkv" if args.get("add_qkv_bias") else "none",
        grouped=bool(args.get("group_query_attention")),
    )


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)
