"""Attention over tokens that are spread over 2 or 4 processes equals attention over all of them."""

import math
import traceback
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundup.models.masks import Masks
from groundup.parallel.context_parallel import _SharedMasks, tokens_of_rank
from tests.parallel.ranks import start_ranks

WORLDS = (2, 4)


@dataclass(frozen=True)
class Case:
    """Shapes of queries, keys and values, and where documents begin."""

    size: int  # of a chunk
    rows: int
    kv_heads: int
    repeats: int
    head_dim: int
    starts: tuple[frozenset[int], ...] | None
    dtype: torch.dtype
    seed: int


@st.composite
def cases(draw, world):
    rows = draw(st.integers(1, 2))
    size = draw(st.integers(1, 9) | st.sampled_from([65, 128, 130]))  # also around the blocks of 128 queries
    positions = st.integers(1, 2 * world * size - 1)
    return Case(
        size=size,
        rows=rows,
        kv_heads=draw(st.integers(1, 2)),
        repeats=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from([2, 12])),
        starts=draw(st.none() | st.tuples(*[st.frozensets(positions, max_size=7)] * rows)),
        dtype=draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])),
        seed=draw(st.integers(0, 1000)),
    )


def documents_of(case, length):
    """Numbers of the tokens' documents, int32 [rows, length]; one document a row where they are joined."""
    documents = torch.zeros(case.rows, length, dtype=torch.int32)
    for row, starts in enumerate(case.starts or ()):
        documents[row, list(starts)] = 1
    return documents.cumsum(1).int()


def softmax_attention(q, k, v, documents):
    """By the book, over all tokens."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    visible = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


def own(x, rank, world, dim=2):
    return tokens_of_rank(x.transpose(1, dim), rank, world).transpose(1, dim)


def differences(case, group):
    """The largest differences of output and of each gradient from attention over all tokens in fp64."""
    rank, world = group.rank(), group.size()
    length = 2 * world * case.size
    generator = torch.Generator().manual_seed(case.seed)
    heads = (case.kv_heads * case.repeats, case.kv_heads, case.kv_heads, case.kv_heads * case.repeats)
    q, k, v, dy = (
        torch.randn(case.rows, n, length, case.head_dim, generator=generator).to(case.dtype) for n in heads
    )
    documents = documents_of(case, length)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    expected = softmax_attention(*whole, documents)
    wanted = (expected, *torch.autograd.grad(expected, whole, dy.double()))

    masks = _SharedMasks(Masks(head_dim=case.head_dim, dropout=0.0), group)
    mine = [own(x, rank, world).requires_grad_() for x in (q, k, v)]
    numbers = tokens_of_rank(documents, rank, world) if case.starts is not None else None
    y = masks(numbers, like=mine[0]).attend(*mine, dropout=0.0)
    found = (y, *torch.autograd.grad(y, mine, own(dy, rank, world)))
    assert y.dtype == case.dtype
    return [
        float((a - own(b, rank, world)).abs().max() / b.abs().max().clamp_min(1.0))
        for a, b in zip(found, wanted, strict=True)
    ]


def dropped(group):
    """The shares of weights, of those that a token sees and does not see, that dropout of a half leaves."""
    rank, world, length = group.rank(), group.size(), 2 * group.size() * 16
    torch.manual_seed(rank)
    masks = _SharedMasks(Masks(head_dim=length, dropout=0.5), group)
    q = torch.zeros(1, 1, length // world, length)
    # Values of a token are its row of the identity, so that outputs are the weights.
    values = own(torch.eye(length)[None, None], rank, world)
    weights = masks(None, like=q).attend(q, q, values, dropout=0.5)[0, 0] != 0
    visible = own(torch.ones(1, 1, length, length).tril(), rank, world)[0, 0] != 0
    return [float(weights[visible].double().mean()), float(weights[~visible].double().mean())]


def process(rank, world, folder, pipes):
    """Answers until there is nothing more to do."""
    pipe = pipes[rank]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    while (work := pipe.recv()) is not None:
        check, *arguments = work
        try:
            pipe.send(check(*arguments, dist.group.WORLD))
        except Exception:
            pipe.send(traceback.format_exc())
    dist.destroy_process_group()


class Ranks:
    """Processes that check one case after the other."""

    def __init__(self, world, folder):
        self.pipes, theirs = zip(*(torch.multiprocessing.Pipe() for _ in range(world)), strict=True)
        self.processes = start_ranks(process, (world, folder, theirs), world)

    def check(self, *work):
        for pipe in self.pipes:
            pipe.send(work)
        answers = [pipe.recv() for pipe in self.pipes]
        for answer in answers:
            assert not isinstance(answer, str), answer
        return answers

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        while not self.processes.join():
            pass


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request, tmp_path_factory):
    processes = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.close()


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equals_attention_over_all_tokens_with_gradients(ranks, data):
    case = data.draw(cases(len(ranks.pipes)))
    for answer in ranks.check(differences, case):
        assert max(answer) <= TOLERANCES[case.dtype], answer


def test_each_rank_drops_weights_of_its_own(ranks):
    for seen, unseen in ranks.check(dropped):
        assert 0.4 < seen < 0.6
        assert unseen == 0
