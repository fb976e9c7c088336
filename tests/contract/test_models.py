"""What every model must do; a new member of ``ModelConfig`` joins through ``tests.instances``."""

import dataclasses
import math

import pytest
import torch

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import axes_of, build_model
from groundup.models.count import num_matmul_parameters, num_parameters, training_flops_per_token
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.models.spec import dimensions_of
from groundup.train.loss import linear_cross_entropy
from tests.cached import forward_by_pieces
from tests.instances import MODELS


@pytest.fixture(params=MODELS, ids=list(MODELS))
def config(request):
    return MODELS[request.param]


def built(config, seed=0):
    model = build_model(config)
    initialise(model, config, seed=seed)
    return model


def llama(vocab_size, num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, **options):
    return LlamaConfig(
        vocab_size=vocab_size,
        max_sequence_length=4096,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        ffn_size=ffn_size,
        **options,
    )


def tokens(config, *shape):
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))


def test_axes_name_every_dimension_of_every_parameter(config):
    sizes = {
        "vocab": padded_vocab_size(config.vocab_size),
        "position": config.max_sequence_length,
        "embed": config.hidden_size,
        "heads": config.num_heads * config.head_dim,
        "kv_heads": config.num_kv_heads * config.head_dim,
        "ffn": config.ffn_size,
    }
    for name, parameter in build_model(config, device="meta").named_parameters():
        dimensions = dimensions_of(axes_of(config), name)
        assert tuple(sizes[dimension] for dimension in dimensions) == tuple(parameter.shape), name


def test_a_parameter_without_axes_is_named():
    with pytest.raises(KeyError, match=r"layers\.0\.extra\.weight"):
        dimensions_of({"norm.weight": ("embed",)}, "layers.0.extra.weight")


def test_a_token_never_sees_what_follows(config):
    model = built(config).eval()
    inputs = tokens(config, 1, 16)
    changed = inputs.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % config.vocab_size
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax(-1).min() > 1e-4


@torch.inference_mode()
def test_cache_equals_the_full_forward(config):
    model = built(config).eval()
    inputs = tokens(config, 2, 20)
    found = forward_by_pieces(model, inputs, (7, 5, 1, 1, 6))
    torch.testing.assert_close(found, model(inputs), rtol=1e-5, atol=1e-5)


def test_initial_values_depend_on_seed_and_name_only(config):
    first, again, other = (dict(built(config, seed).named_parameters()) for seed in (1, 1, 2))
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name])
        if parameter.ndim == 2:
            assert not torch.equal(parameter, other[name]), name
    matrices = [p for name, p in first.items() if p.ndim == 2 and name.startswith("layers.0.attention")]
    assert not torch.equal(matrices[0], matrices[-1])


def test_initial_spread_and_padding(config):
    for name, parameter in built(config).named_parameters():
        if parameter.ndim == 2:
            logical = (
                parameter[: config.vocab_size]
                if "vocab" in dimensions_of(axes_of(config), name)
                else parameter
            )
            residual = name.endswith((".wo.weight", ".w2.weight"))
            expected = 0.02 / (math.sqrt(2 * config.num_layers) if residual else 1)
            assert logical.std().item() == pytest.approx(expected, rel=0.1), name
            assert parameter[len(logical) :].abs().sum() == 0


def test_loss_at_initialisation_is_that_of_a_uniform_guess(config):
    model = built(config)
    inputs = tokens(config, 4, 33)
    hidden = model(inputs[:, :-1]).flatten(0, 1)
    loss = linear_cross_entropy(
        hidden, model.head.weight, inputs[:, 1:].flatten(), vocab_size=config.vocab_size
    ) / (4 * 32)
    assert loss.item() == pytest.approx(math.log(config.vocab_size), abs=0.1)


def test_blocked_bf16_attention_agrees_with_the_fused_kernel(config):
    """The CPU's training path in bf16 against fp32 through SDPA: bf16's rounding, no more."""
    model = built(config).eval()
    inputs = tokens(config, 2, 64)
    exact = model(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(inputs)
    assert ((rounded - exact).norm() / exact.norm()).item() < 0.02


def test_counts_agree_with_the_built_model(config):
    model = build_model(config, device="meta")
    logical = sum(
        p.numel() * config.vocab_size // p.shape[0]
        if "vocab" in dimensions_of(axes_of(config), name)
        else p.numel()
        for name, p in model.named_parameters()
    )
    assert num_parameters(config) == logical


def test_gpt2_small_by_hand():
    """124,439,808 parameters (Radford et al. 2019, as released), and the FLOPs of a token by hand."""
    config = type(MODELS["gpt2"])(
        vocab_size=50257,
        max_sequence_length=1024,
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        ffn_size=3072,
    )
    assert num_parameters(config) == 124_439_808
    layer = 4 * 768 * 768 + 2 * 768 * 3072
    assert num_matmul_parameters(config) == 12 * layer + 50304 * 768
    causal_attention = (
        3 * 2 * 2 * 768 * 1024 / 2
    )  # forward and twice backward; q k^T and w v; half the square
    assert training_flops_per_token(config, 1024) == 6 * (12 * layer + 50304 * 768) + 12 * causal_attention


@pytest.mark.parametrize(
    ("config", "expected"),
    [  # of model.safetensors as released; queries, keys and values of Qwen2 have biases
        (llama(32000, 32, 4096, 32, 32, 11008), 6_738_415_616),  # Llama 2 7B
        (llama(128256, 32, 4096, 32, 8, 14336), 8_030_261_248),  # Llama 3.1 8B
        (llama(128256, 16, 2048, 32, 8, 8192, tied_embedding=True), 1_235_814_400),  # Llama 3.2 1B
        (llama(32000, 32, 4096, 32, 8, 14336), 7_241_732_096),  # Mistral 7B v0.1
        (
            llama(151936, 24, 896, 14, 2, 4864, tied_embedding=True, qkv_bias=True),
            494_032_768,
        ),  # Qwen2.5 0.5B
        (llama(152064, 28, 3584, 28, 4, 18944, qkv_bias=True), 7_615_616_512),  # Qwen2.5 7B
        (llama(49152, 30, 576, 9, 3, 1536, tied_embedding=True), 134_515_008),  # SmolLM2 135M
    ],
)
def test_released_models_of_the_llama_family_by_their_counts(config, expected):
    assert num_parameters(config) == expected
    biases = config.num_layers * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    without = dataclasses.replace(config, qkv_bias=False)
    assert num_parameters(config) - num_parameters(without) == (biases if config.qkv_bias else 0)
    assert training_flops_per_token(config, 2048) == training_flops_per_token(without, 2048)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_wrong_shapes_are_refused(name):
    with pytest.raises(ValueError, match="hidden_size 32 is not a multiple of num_heads 5"):
        dataclasses.replace(MODELS[name], num_heads=5)
