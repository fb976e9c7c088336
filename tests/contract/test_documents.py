"""Packed samples with documents masked train a model as the documents one by one do."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from groundup.models import build_model, lm_head
from groundup.models.init import initialise
from groundup.tokens.sampling.dataset import TokenDataset
from groundup.tokens.sampling.packing import PackedDataset
from groundup.train.loss import IGNORE, linear_cross_entropy
from groundup.train.objective import LANGUAGE_MODELLING
from groundup.train.run_data import TokenSplit, read_batch
from groundup.train.validation import measure
from tests.instances import MODELS
from tests.unit.tokens.sources import ArraySource

LENGTHS = [1, 2, 40, 1, 130, 3, 2, 2, 64, 65, 66, 17, 1, 33, 9, 2, 21]
"""Documents of one and two tokens, some that a sample of 65 just holds, some that its border cuts."""
LENGTH = 64
CPU = torch.device("cpu")


@pytest.fixture(params=MODELS, ids=list(MODELS))
def model(request):
    config = dataclasses.replace(MODELS[request.param], init_std=0.1)  # attention and positions that matter
    model = build_model(config)
    initialise(model, config, seed=0)
    return model


@pytest.fixture
def source():
    tokens = np.random.default_rng(0).integers(0, 300, sum(LENGTHS)).astype(np.uint16)
    return ArraySource(tokens, LENGTHS)


def gradients(model, forward_losses):
    """The summed loss and its gradients by parameter name."""
    model.zero_grad()
    total = 0.0
    for loss in forward_losses:
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def loss_of(model, tokens_BT, targets_BT, **where):
    hidden = model(tokens_BT, **where).flatten(0, 1)
    return linear_cross_entropy(hidden, model.head.weight, targets_BT.flatten(), vocab_size=300)


def losses_of_samples(model, dataset, *, mask_documents):
    for first in range(0, dataset.num_samples, 3):
        count = min(3, dataset.num_samples - first)
        batch = read_batch(dataset, first, count, vocab_size=300, mask_documents=mask_documents)
        yield loss_of(
            model,
            batch.tokens_BT,
            batch.targets_BT,
            positions_BT=batch.positions_BT,
            documents_BT=batch.documents_BT,
        )


def losses_one_by_one(model, pieces):
    for piece in pieces:
        if len(piece) > 1:
            tokens = torch.from_numpy(piece.astype(np.int64))[None]
            yield loss_of(model, tokens[:, :-1], tokens[:, 1:])


def whole_documents(source):
    """Each document alone, cut at LENGTH targets."""
    for document in np.split(source.tokens, np.cumsum(LENGTHS)[:-1]):
        yield from (document[begin : begin + LENGTH + 1] for begin in range(0, len(document), LENGTH))


def cut_documents(source):
    """Each document alone, cut where the stream is cut into samples."""
    borders = np.cumsum(LENGTHS).tolist()
    for begin in range(0, sum(LENGTHS) - LENGTH, LENGTH):
        window = source.tokens[begin : begin + LENGTH + 1]
        yield from np.split(window, [border - begin for border in borders if 0 < border - begin <= LENGTH])


SAMPLES = {"stream": (TokenDataset, cut_documents), "best_fit": (PackedDataset, whole_documents)}


def relative_error(found, expected):
    """Largest error of a parameter's gradient, relative to that gradient's norm.

    Gradients below a thousandth of the largest are compared with that: a key's bias has none but rounding.
    """
    assert found.keys() == expected.keys()
    least = max(float(gradient.norm()) for gradient in expected.values()) / 1000
    return max(
        float((found[name] - gradient).norm()) / max(float(gradient.norm()), least)
        for name, gradient in expected.items()
    )


@pytest.mark.parametrize("packing", SAMPLES)
def test_gradients_are_those_of_the_documents_one_by_one(model, source, packing):
    kind, pieces = SAMPLES[packing]
    dataset = kind(source, sequence_length=LENGTH, seed=0)
    expected_loss, expected = gradients(model, losses_one_by_one(model, pieces(source)))
    loss, found = gradients(model, losses_of_samples(model, dataset, mask_documents=True))
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert relative_error(found, expected) < 1e-5

    joined_loss, joined = gradients(model, losses_of_samples(model, dataset, mask_documents=False))
    assert abs(joined_loss / expected_loss - 1) > 1e-2
    assert relative_error(joined, expected) > 0.1


def test_the_kernel_for_bf16_stays_within_documents_too(model, source):
    dataset = PackedDataset(source, sequence_length=LENGTH, seed=0)
    _, expected = gradients(model, losses_one_by_one(model, whole_documents(source)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, one_by_one = gradients(model, losses_one_by_one(model, whole_documents(source)))
        _, found = gradients(model, losses_of_samples(model, dataset, mask_documents=True))
    rounding = relative_error(one_by_one, expected)
    assert 1e-3 < rounding < 0.05
    assert relative_error(found, expected) < 1.1 * rounding


@torch.no_grad()
def summed_loss(model, batch):
    """The loss of what an evaluation asks for."""
    positions, documents = batch.positions_BT, batch.documents_BT
    logits = lm_head(model, model(batch.tokens_BT, positions_BT=positions, documents_BT=documents), 300)
    targets = batch.targets_BT.flatten()
    return cross_entropy(logits.flatten(0, 1), targets, reduction="sum", ignore_index=IGNORE).item()


def test_evaluation_predicts_each_document_alone(model, source):
    dataset = PackedDataset(source, sequence_length=LENGTH, seed=0)
    with torch.no_grad():
        expected = sum(float(loss) for loss in losses_one_by_one(model, whole_documents(source)))
    vocab_size = model.config.vocab_size

    def measured(mask_documents):
        split = TokenSplit(samples=dataset, vocab_size=vocab_size, mask_documents=mask_documents)
        total = split.num_samples
        batches = (split.read(at, min(3, total - at), ordered=True) for at in range(0, total, 3))
        return measure(lambda batch: [summed_loss(model, batch)], batches, LANGUAGE_MODELLING)

    found = measured(True)
    assert found.total_loss == pytest.approx(expected, rel=1e-5)
    assert found.num_tokens == dataset.packing.num_targets == sum(LENGTHS) - len(LENGTHS)
    joined = measured(False)
    assert joined.num_tokens > found.num_tokens
    assert joined.loss != pytest.approx(found.loss, rel=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_compiled_layers_serve_batches_of_any_documents(name):
    """Nothing is compiled anew because documents begin elsewhere, in whichever block of queries."""
    config = dataclasses.replace(MODELS[name], max_sequence_length=300)
    model = build_model(config)
    initialise(model, config, seed=0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(300, (2, 300), generator=generator)
    batches = [(torch.rand(2, 300, generator=generator) < 1 / 100).cumsum(1).int() for _ in range(12)]
    expected = [model(tokens, documents_BT=documents) for documents in batches]
    torch._dynamo.reset()
    for layer in model.layers.values():
        layer.compile(backend="eager")
    model(tokens, documents_BT=batches[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        found = [model(tokens, documents_BT=documents) for documents in batches]
    torch.testing.assert_close(found, expected)
