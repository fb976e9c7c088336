"""Recomputation changes memory only: the same bits, and as many bytes kept as the papers and we count."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from groundup.core.errors import ConfigError
from groundup.models import Model, ModelConfig, build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.parallel.activation_checkpointing import Recompute, apply_activation_checkpointing
from groundup.parallel.layout import Layout
from tests.cached import forward_by_pieces
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_config, make_data

MODES = ("selective", "full")
LENGTH = 192  # more than one block of queries
SIZES = {"vocab_size": 300, "max_sequence_length": LENGTH, "hidden_size": 32, "num_heads": 4}


def _config(kind: str, *, dropout: float = 0.0, num_layers: int = 3, **sizes: int) -> ModelConfig:
    shape = {**SIZES, "num_layers": num_layers, "dropout": dropout, "attention_dropout": dropout, **sizes}
    if kind == "gpt2":
        return GPT2Config(ffn_size=4 * shape["hidden_size"], **shape)
    return LlamaConfig(ffn_size=3 * shape["hidden_size"], num_kv_heads=2, **shape)


KEEP_ALL = Recompute()


def _model(model_config: ModelConfig, recompute: Recompute = KEEP_ALL) -> Model:
    model = build_model(model_config).train()
    initialise(model, model_config, seed=0)
    apply_activation_checkpointing(model, recompute)
    return model


def _tokens(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


def _documents(rows: int = 2, length: int = LENGTH) -> Tensor:
    return (torch.arange(length) // 70).expand(rows, length)


def _autocast(precision: str) -> contextlib.AbstractContextManager[None]:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def _gradients(model: Model, precision: str, documents_BT: Tensor | None = None) -> dict[str, Tensor]:
    """Of a random function of the hidden states; with those under "hidden"."""
    model.zero_grad()
    torch.manual_seed(7)
    with _autocast(precision):
        hidden_BTD = model(_tokens(), documents_BT=documents_BT)
    weights_BTD = torch.randn(hidden_BTD.shape, generator=torch.Generator().manual_seed(2))
    (hidden_BTD.float() * weights_BTD).sum().backward()
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return {"hidden": hidden_BTD.detach(), **gradients}


@pytest.mark.parametrize("with_documents", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradients_are_the_same_bits(kind: str, precision: str, dropout: float, with_documents: bool) -> None:
    model_config = _config(kind, dropout=dropout)
    documents_BT = _documents() if with_documents else None
    expected = _gradients(_model(model_config), precision, documents_BT)
    after = torch.rand(1)
    assert len(expected) > 20
    for recompute in (*(Recompute(mode=mode) for mode in MODES), Recompute(mode="full", every=2)):
        found = _gradients(_model(model_config, recompute), precision, documents_BT)
        assert torch.equal(torch.rand(1), after), "the state of random numbers is left as without"
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (recompute, name)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operations made within the block, and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(outputs):
            if storage._cdata not in given:  # else a view, or changed in place
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return outputs

    @property
    def alive(self) -> int:
        """Bytes."""
        return sum(size for reference, size in self._made.values() if not reference.expired())


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _kept_bytes(
    model_config: ModelConfig,
    recompute: Recompute,
    *,
    dtype: torch.dtype = torch.bfloat16,
    documents_BT: Tensor | None = None,
) -> int:
    """Activations that a forward pass over one row leaves alive, all in ``dtype``."""
    model = _model(model_config, recompute).to(dtype)
    length = model_config.max_sequence_length
    with LiveBytes() as live:
        hidden_BTD = model(_tokens(1, length), documents_BT=documents_BT)
    kept = live.alive
    del hidden_BTD
    assert live.alive == 0, "all is let go of with the graph"
    return kept


def _kept_by_a_layer(kind: str, mode: str, **options: int | float) -> float:
    """In units of s b h, tokens times hidden size."""
    two, four = (_config(kind, num_layers=layers, **options) for layers in (2, 4))
    recompute = Recompute(mode=mode)
    difference = _kept_bytes(four, recompute) - _kept_bytes(two, recompute)
    return difference / 2 / (two.max_sequence_length * two.hidden_size)


WIDE = {"hidden_size": 256, "max_sequence_length": 512}


def test_a_layer_keeps_as_much_as_korthikanti_et_al_count() -> None:
    """arXiv:2205.05198, equation 2: s b h (34 + 5 a s / h) bytes a layer in half precision.

    Without dropout that is 2 less for two masks, and 2 in place of 5 a s / h for the attention weights
    alone, of which the blocks above the diagonal are never made. Under full recomputation: 2 s b h.
    """
    heads, length, hidden = 4, 512, 256
    blocks = length // 128
    weights = 2 * heads * length / hidden * (1 + 1 / blocks) / 2
    assert _kept_by_a_layer("gpt2", "none", **WIDE) == pytest.approx(34 - 2 + weights, rel=0.01)
    assert _kept_by_a_layer("gpt2", "full", **WIDE) == 2


@pytest.mark.parametrize(
    ("kind", "dropout", "products"),
    [
        ("gpt2", 0.0, 3 + 1 + 4),  # q, k and v; wo; w1
        ("gpt2", 0.1, 3 + 1 + 4 + 1),  # and w2, whose output dropout needs
        ("llama", 0.0, (1 + 2 * 2 / 4) + 1 + 2 * 3),  # two of four heads for keys and for values; w1 and w3
        ("llama", 0.1, (1 + 2 * 2 / 4) + 1 + 2 * 3 + 1),
    ],
)
def test_selective_keeps_a_layers_input_and_what_products_give(
    kind: str, dropout: float, products: float
) -> None:
    assert _kept_by_a_layer(kind, "selective", dropout=dropout, **WIDE) == 2 + 2 * products


@pytest.mark.parametrize("with_documents", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_full_keeps_less_than_selective_and_selective_less_than_none(
    kind: str, dtype: torch.dtype, with_documents: bool
) -> None:
    def kept(recompute: Recompute) -> int:
        return _kept_bytes(_config(kind, num_layers=4), recompute, dtype=dtype, documents_BT=documents_BT)

    documents_BT = _documents(1) if with_documents else None
    none, selective, full = (kept(Recompute(mode=mode)) for mode in ("none", *MODES))
    assert full < 0.4 * selective
    assert selective < 0.75 * none
    assert full < kept(Recompute(mode="full", every=2)) < none


@pytest.mark.parametrize(("every", "twice"), [(1, "01234"), (2, "024"), (3, "03"), (7, "0")])
def test_each_so_many_th_layer_is_computed_again(every: int, twice: str) -> None:
    model = _model(_config("gpt2", num_layers=5), Recompute(mode="full", every=every))
    calls: list[str] = []
    for name, layer in model.layers.items():
        layer.attention.register_forward_hook(lambda *_, name=name: calls.append(name))
    _gradients(model, "fp32")
    assert {name for name in calls if calls.count(name) == 2} == set(twice)
    assert {name for name in calls if calls.count(name) == 1} == set("01234") - set(twice)


@pytest.mark.parametrize("mode", MODES)
def test_names_stay_and_a_copy_computes_with_its_own_weights(mode: str) -> None:
    plain, model = _model(_config("gpt2")), _model(_config("gpt2"), Recompute(mode=mode))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    before = _gradients(model, "fp32")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.zero_grad()
    after = _gradients(twin, "fp32")
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_generation_fills_its_cache_once(mode: str) -> None:
    models = (_model(_config("llama"), Recompute(mode=mode)).eval() for mode in ("none", mode))
    with torch.inference_mode():
        expected, found = (forward_by_pieces(model, _tokens(), [64] * (LENGTH // 64)) for model in models)
    assert torch.equal(found, expected)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("kind", "precision", "dropout"), [("gpt2", "fp32", 0.3), ("llama", "bf16", 0.0)])
@pytest.mark.usefixtures("fresh_compiler")
def test_traced_and_cut_into_two_graphs_gradients_are_the_same_and_less_is_kept(
    kind: str, precision: str, dropout: float
) -> None:
    """As torch.compile does, but for generating code, which takes minutes."""
    model_config = _config(kind, dropout=dropout, num_layers=1)
    found, kept = {}, {}
    for mode in ("none", *MODES):
        model = _model(model_config, Recompute(mode=mode))
        for layer in model.layers.values():
            layer.compile(backend="aot_eager_decomp_partition", fullgraph=True)
        with _saved_bytes() as saved:
            found[mode] = _gradients(model, precision)
        kept[mode] = sum(saved.values())
    assert kept["full"] < 0.6 * kept["selective"]
    assert kept["selective"] < 0.75 * kept["none"]
    for mode in MODES:
        for name, expected in found["none"].items():
            assert torch.equal(found[mode][name], expected), (mode, name)


@contextlib.contextmanager
def _saved_bytes() -> Iterator[dict[int, int]]:
    """Address -> size of what autograd is handed to save within the block, weights included."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


LAYOUTS = {
    "dp2-zero3": ("gpt2", Layout(dp=2, zero=3)),
    "tp2": ("llama", Layout(tp=2)),
    "pp2": ("gpt2", Layout(pp=2)),
    "cp2": ("llama", Layout(cp=2)),
}


@pytest.mark.slow
def test_under_every_kind_of_layout_losses_and_gradient_norms_are_the_same(tmp_path: Path) -> None:
    """With dropout, whose random numbers each rank has to draw again."""
    data = make_data(tmp_path)
    configs = {}
    for name, (kind, layout) in LAYOUTS.items():
        for mode in ("none", *MODES):
            run_dir = tmp_path / f"{name}-{mode}"
            settings = ("num_steps=2", "optimizer.kind=sgd", "data.split='1'", f"recompute.mode={mode}")
            base = make_config(data, run_dir, *settings)
            model = _config(kind, dropout=0.1, num_layers=2)
            configs[name, mode] = dataclasses.replace(base, model=model, layout=layout)
    train_on_ranks(2, list(configs.values()), tmp_path)
    for name in LAYOUTS:
        none, selective, full = (_curve(configs[name, mode].run_dir) for mode in ("none", *MODES))
        assert len(none) == 2
        assert selective == none, name
        assert full == none, name


def _curve(run_dir: Path) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    records = (orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines())
    return [(record["loss"], record["grad_norm"]) for record in records if record["kind"] == "train"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("recompute.every=2",), "every 2 has no effect with mode none"),
        (("recompute.mode=full", "recompute.every=0"), "recompute.every"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        make_config(tmp_path / "data", tmp_path / "run", *overrides)
