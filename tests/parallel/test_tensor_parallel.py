"""A model cut over 2 or 3 processes has the loss and the gradients of the whole one."""

import copy
import json
import traceback
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from groundup.models import build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.parallel.tensor_parallel import (
    _key_value_heads,
    apply_tensor_parallel,
    finish_gradients,
    tensor_reasons,
    vocabulary_shard,
)
from groundup.train.loss import IGNORE, linear_cross_entropy
from groundup.train.token_log_probs import token_log_probs
from tests.instances import MODELS
from tests.parallel.ranks import start_ranks

SIZES = {"vocab_size": 500, "max_sequence_length": 64, "num_layers": 2, "hidden_size": 48, "ffn_size": 96}
CASES = {
    2: {
        **MODELS,
        "llama-one-kv-head": replace(MODELS["llama-grouped-tied"], num_kv_heads=1),
        "qwen2-one-kv-head": replace(MODELS["qwen2-grouped-tied"], num_kv_heads=1),
        "stablelm-all-biases": replace(MODELS["stablelm"], num_kv_heads=1, linear_bias="all"),
    },
    # 500 ids are 512 rows: 171, 171 and 170; 129 are 256: of 86, 86 and 84, where the last are all padding.
    3: {
        "gpt2": GPT2Config(num_heads=6, **SIZES),
        "gpt2-padding": GPT2Config(num_heads=3, **{**SIZES, "vocab_size": 129}),
        "llama": LlamaConfig(num_heads=3, num_kv_heads=3, **SIZES),
        "llama-two-kv-heads-tied": LlamaConfig(num_heads=6, num_kv_heads=2, tied_embedding=True, **SIZES),
        "llama-one-kv-head": LlamaConfig(num_heads=6, num_kv_heads=1, **SIZES),
        "qwen2-two-kv-heads": LlamaConfig(num_heads=6, num_kv_heads=2, qkv_bias=True, **SIZES),
        "gpt2-50257": GPT2Config(num_heads=3, **{**SIZES, "vocab_size": 50257, "hidden_size": 12}),
    },
}


def batch(config, documents):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab_size, (3, 31), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[:, ::5] = IGNORE
    given = {}
    if documents:
        starts = torch.rand(3, 30, generator=generator) < 0.2
        starts[:, 0] = True
        first = torch.where(starts, torch.arange(30), 0).cummax(1).values
        given = {"documents_BT": starts.cumsum(1), "positions_BT": torch.arange(30) - first}
    return tokens[:, :-1], targets, given


def loss_of(model, config, rows, documents):
    """Loss of some rows, by the way that fits the model."""
    tokens, targets, given = batch(config, documents)
    hidden = model(tokens[rows], **{name: value[rows] for name, value in given.items()})
    head = vocabulary_shard(model.head.weight)
    return linear_cross_entropy(
        hidden.flatten(0, 1),
        head.rows_VD,
        targets[rows].flatten(),
        vocab_size=config.vocab_size,
        group=head.group,
        vocab_begin=head.vocab_begin,
    )


def whole_model(config):
    model = build_model(config)
    initialise(model, config, seed=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # also those that begin as 0 or 1
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def difference(config, kind, mesh):
    """The largest relative differences of (loss, any gradient); gradients after two micro-batches."""
    documents = kind == "documents"
    whole = whole_model(config)
    part = copy.deepcopy(whole)
    apply_tensor_parallel(part, config, mesh)
    assert (part.head.weight is part.embed.tokens.weight) == config.tied_embedding
    assert all(isinstance(parameter, DTensor) for parameter in part.parameters())
    losses = []
    for model in (whole, part):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16"):
            some, others = (loss_of(model, config, rows, documents) for rows in (slice(2), slice(2, 3)))
            some.backward()
            others.backward()
        losses.append((some + others).item())
    finish_gradients(part)
    total = torch.nn.utils.get_total_norm([parameter.grad for parameter in whole.parameters()])
    worst = 0.0
    for (name, expected), actual in zip(whole.named_parameters(), part.parameters(), strict=True):
        assert actual.grad.placements == actual.placements, name
        assert actual.shape == expected.shape, name
        error = (actual.grad.full_tensor() - expected.grad).norm()
        # Keys' biases change no attention: their gradients are rounding errors alone.
        worst = max(worst, (error / (expected.grad.norm() + 0.01 * total)).item())
    return abs(losses[1] / losses[0] - 1), worst


def meta_difference(config, mesh):
    """As for the whole model, but cut on the meta device and filled from the whole values after."""
    whole = whole_model(config)
    part = build_model(config, device="meta")
    apply_tensor_parallel(part, config, mesh)
    part.to_empty(device="cpu")
    part.tie_weights()
    with torch.no_grad():
        for value, parameter in zip(whole.parameters(), part.parameters(), strict=True):
            parameter.copy_(distribute_tensor(value, mesh, parameter.placements, src_data_rank=None))
    expected = loss_of(whole, config, slice(3), False).item()
    return abs(loss_of(part, config, slice(3), False).item() / expected - 1), 0.0


def weighted_log_probs(hidden, head, targets, **given):
    """A loss of log-probabilities that have different gradients."""
    log_probs = token_log_probs(hidden, head, targets, **given)
    return (log_probs * torch.linspace(-1, 2, len(targets))).sum()


def loss_difference(loss_of, vocab_size, mesh):
    """Of a vocabulary-parallel loss alone: (loss, worst gradient)."""
    generator = torch.Generator().manual_seed(0)
    hidden = (30 * torch.randn(70, 8, generator=generator)).requires_grad_()
    head = torch.randn(-(-vocab_size // 128) * 128, 8, generator=generator).requires_grad_()
    targets = torch.randint(vocab_size, (70,), generator=generator)
    targets[::7] = IGNORE
    expected = loss_of(hidden, head, targets, vocab_size=vocab_size)
    expected_gradients = torch.autograd.grad(expected * 3, (hidden, head))
    rows = head.detach().chunk(mesh.size())[mesh.get_local_rank()].clone().requires_grad_()
    begin = mesh.get_local_rank() * len(head.chunk(mesh.size())[0])
    actual = loss_of(hidden, rows, targets, vocab_size=vocab_size, group=mesh.get_group(), vocab_begin=begin)
    gradients = torch.autograd.grad(actual * 3, (hidden, rows))
    dist.all_reduce(gradients[0], group=mesh.get_group())
    wanted = expected_gradients[0], expected_gradients[1][begin : begin + len(rows)]
    errors = [((a - b).norm() / (b.norm() + 1e-9)).item() for a, b in zip(gradients, wanted, strict=True)]
    return abs(actual.item() / expected.item() - 1), max(errors)


def odd_length(config, mesh):
    model = build_model(config)
    apply_tensor_parallel(model, config, mesh)
    with pytest.raises(Exception, match=r"sequence_length 31 is not divisible by tp"):
        model(torch.zeros(1, 31, dtype=torch.long))
    return 0.0, 0.0


def checks(world):
    for number, (name, config) in enumerate(CASES[world].items()):
        for kind in ("rows", "documents") if number else ("rows", "documents", "bfloat16"):
            yield f"{name}-{kind}", lambda mesh, c=config, k=kind: difference(c, k, mesh)
    yield "meta", lambda mesh: meta_difference(CASES[world]["gpt2"], mesh)
    for vocab_size in (129, 384, 500, 50257):
        for name, loss in (("loss", linear_cross_entropy), ("log-probs", weighted_log_probs)):
            yield f"{name}-{vocab_size}", lambda mesh, f=loss, v=vocab_size: loss_difference(f, v, mesh)
    yield "odd-length", lambda mesh: odd_length(CASES[world]["gpt2"], mesh)


def process(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    results = {}
    for name, check in checks(world):
        try:
            results[name] = check(mesh)
        except Exception:
            results[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of all checks, by world size, rank and name; the processes start once for all of them."""
    done = {}

    def of(world):
        if world not in done:
            folder = tmp_path_factory.mktemp(f"world-{world}")
            ranks = start_ranks(process, (world, folder), world)
            while not ranks.join():
                pass
            done[world] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
        return done[world]

    return of


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in CASES for name, _ in checks(world)])
def test_as_the_single_process(results, world, name):
    rounding = name.endswith("bfloat16")
    for result in results(world):
        assert not isinstance(result[name], str), result[name]
        loss, gradient = result[name]
        assert loss <= (2e-3 if rounding else 1e-6)
        assert gradient <= (5e-2 if rounding else 1e-5)


def test_every_reason_is_named():
    config = GPT2Config(num_heads=6, **SIZES)
    assert tensor_reasons(config, 3, 30) == []
    assert tensor_reasons(config, 5, 32) == [
        "num_heads 6 is not divisible by tp 5.",
        "ffn_size 96 is not divisible by tp 5.",
        "sequence_length 32 is not divisible by tp 5.",
    ]


@pytest.mark.parametrize(
    ("num_kv_heads", "tp", "heads"),
    [
        (2, 4, [[0], [0], [1], [1]]),
        (4, 2, [[0, 1], [2, 3]]),
        (4, 3, [[0, 0, 0, 1], [1, 2], [2, 3, 3, 3]]),  # groups of 3 over ranks of 4
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_ranks_keep_the_key_value_heads_of_their_queries(num_kv_heads, tp, heads):
    config = LlamaConfig(**{**SIZES, "num_heads": 12, "hidden_size": 96}, num_kv_heads=num_kv_heads)
    assert [_key_value_heads(config, tp, rank) for rank in range(tp)] == heads
