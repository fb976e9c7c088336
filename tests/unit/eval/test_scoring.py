"""Scores are those of one request alone, whatever is scored beside it."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import DataError, MachineError
from groundup.eval import scored_rows
from groundup.eval.scoring import Request, loglikelihood, windows
from tests.forked import python
from tests.instances import MODELS
from tests.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[3]
LOADED = {name: tiny_model(name) for name in ("gpt2", "llama-grouped-tied")}


def request(context, continuation):
    return Request(np.array(context, np.int64), np.array(continuation, np.int64), num_bytes=len(continuation))


def alone(model, vocab_size, item, banned=()):
    """By one forward pass over this item only, and all of its logits."""
    ids = np.concatenate((item.context, item.continuation))[-(model.config.max_sequence_length + 1) :]
    wanted = len(item.continuation)
    with torch.no_grad():
        hidden = model(torch.from_numpy(ids[None, :-1]))[0, -wanted:]
        logits = (hidden @ model.head.weight[:vocab_size].T).double()
    targets = torch.from_numpy(item.continuation)
    logprobs = logits.log_softmax(-1)[range(wanted), targets]
    allowed = logits.clone()
    allowed[:, list(banned)] = -torch.inf
    return logprobs.numpy(), (logits.argmax(-1) == targets).numpy(), (allowed.argmax(-1) == targets).numpy()


ids_of = st.lists(st.integers(0, 299), min_size=1, max_size=70)
endings_of = st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(LOADED)),
    st.lists(st.tuples(ids_of, endings_of), min_size=1, max_size=6),
    st.sampled_from([0, 1, 3, 64]),
    st.booleans(),
)
def test_neither_padding_nor_batch_nor_sharing_changes_a_score(name, items, batch_size, share):
    model, config = LOADED[name].model, LOADED[name].config
    requests = [request(context, ending) for context, endings in items for ending in endings]
    banned = [7, 150]
    found = loglikelihood(model, config, requests, batch_size=batch_size, share=share, banned_ids=banned)
    for item, score in zip(requests, found, strict=True):
        logprobs, greedy, allowed = alone(model, 300, item, banned)
        assert score.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert score.greedy.tolist() == greedy.tolist()
        assert score.allowed.tolist() == allowed.tolist()
        assert score.num_tokens == score.num_bytes == len(item.continuation)
        assert score.num_truncated == max(0, len(item.context) + len(item.continuation) - 65)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_shares_contexts(name):
    loaded = tiny_model(name)
    requests = [request([5, 6, 7, 8], ending) for ending in ([9, 10], [11], [9, 10, 12, 13])]
    for item, score in zip(requests, loglikelihood(loaded.model, loaded.config, requests), strict=True):
        logprobs, greedy, _ = alone(loaded.model, 300, item)
        assert score.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert score.is_greedy == greedy.all()


def test_a_shared_context_is_read_once(monkeypatch):
    """Four endings of ten tokens behind fifty: 86 tokens are read, not 236."""
    loaded, read = tiny_model("gpt2"), []
    loaded.model.embed.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape))
    requests = [request(range(50), [number] * 10) for number in range(4)]
    loglikelihood(loaded.model, loaded.config, requests)
    assert read == [(1, 50 + 4 * 9)]
    read.clear()
    loglikelihood(loaded.model, loaded.config, requests, share=False)
    assert read == [(4, 59)]


def test_a_batch_that_does_not_fit_into_memory_is_halved():
    loaded, sizes = tiny_model("gpt2"), []

    def refuse_more_than(most):
        def hook(_, inputs):
            sizes.append(len(inputs[0]))
            if sizes[-1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory")

        return hook

    requests = [request([number, 1], [2, 3]) for number in range(10)]
    expected = loglikelihood(loaded.model, loaded.config, requests)
    handle = loaded.model.embed.register_forward_pre_hook(refuse_more_than(3))
    found = loglikelihood(loaded.model, loaded.config, requests)
    assert sizes == [10, 5, 2, 2, 2, 2, 2]
    assert [score.logprob for score in found] == pytest.approx(
        [score.logprob for score in expected], abs=1e-5
    )
    handle.remove()
    loaded.model.embed.register_forward_pre_hook(refuse_more_than(0))
    with pytest.raises(MachineError, match="does not hold one text of 3 tokens"):
        loglikelihood(loaded.model, loaded.config, requests)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
def test_a_memory_that_is_really_full_changes_no_score():
    """In a process of its own: what other tests have freed would be there to be had again."""
    program = "from tests.unit.eval.test_scoring import score_in_little_memory as score; score()"
    done = subprocess.run([python(), "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def score_in_little_memory():
    loaded, sizes = tiny_model("llama"), []
    requests = [request([number // 300] * 39 + [number % 300], [2] * 20) for number in range(2048)]
    expected = [score.logprob for score in loglikelihood(loaded.model, loaded.config, requests)]
    loaded.model.embed.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), before[1]))
    try:
        found = loglikelihood(loaded.model, loaded.config, requests, batch_size=2048)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert sizes[0] == 2048
    assert sizes[-1] < 2048
    assert [score.logprob for score in found] == pytest.approx(expected, abs=1e-5)


def test_another_error_is_not_taken_for_a_full_memory():
    loaded = tiny_model("gpt2")

    def fail(*_):
        raise RuntimeError("shapes differ")

    loaded.model.embed.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        loglikelihood(loaded.model, loaded.config, [request([1], [2])])


@pytest.mark.parametrize(
    ("context", "continuation", "says"),
    [
        ([1], [], "the continuation is empty"),
        ([], [1], "the context is empty"),
        ([1], [2] * 65, "a continuation has 65 tokens, the model's context holds 64"),
    ],
)
def test_what_cannot_be_scored_is_refused(context, continuation, says):
    loaded = tiny_model("gpt2")
    with pytest.raises(DataError, match=says):
        loglikelihood(loaded.model, loaded.config, [request(context, continuation)])


def test_chunks_of_logits_change_nothing(monkeypatch):
    loaded = tiny_model("llama")
    requests = [request([1, 2, 3], [4] * length) for length in (1, 5, 17)]
    whole = loglikelihood(loaded.model, loaded.config, requests)
    monkeypatch.setattr(scored_rows, "_LOGITS_BYTES", 3 * 4 * 300)
    for one, other in zip(whole, loglikelihood(loaded.model, loaded.config, requests), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@given(st.integers(2, 60), st.integers(1, 12), st.data())
def test_windows_predict_each_token_once(num_tokens, length, data):
    stride = data.draw(st.integers(1, length))
    tokens = np.arange(num_tokens)
    found = list(windows(tokens, length, stride, num_tokens - 1))
    assert [number for part in found for number in part.continuation.tolist()] == list(range(1, num_tokens))
    for number, part in enumerate(found):
        ids = [*part.context.tolist(), *part.continuation.tolist()]
        assert ids == list(range(number * stride, number * stride + len(ids)))
        assert len(ids) <= length + 1
        if number:
            assert len(part.context) == length - stride + 1


def test_scores_are_reported_as_they_come():
    loaded, seen = tiny_model("gpt2"), []
    requests = [request([1, 2], [3] * length) for length in (1, 2, 3)]
    scores = loglikelihood(
        loaded.model, loaded.config, requests, share=False, batch_size=2, on_progress=seen.append
    )
    assert [score for part in seen for score in part] == [scores[1], scores[2], scores[0]]
