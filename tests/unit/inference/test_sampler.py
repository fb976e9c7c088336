import pytest
import torch

from groundup.core.config import from_dict
from groundup.core.errors import ConfigError
from groundup.inference.sampler import Sampling, filtered, sample


def _generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + i) for i in range(count)]


def _kept(logits: list[float], **settings: float) -> list[int]:
    found = filtered(torch.tensor([logits]), Sampling(**settings))  # type: ignore[arg-type]
    return found[0].isfinite().nonzero().flatten().tolist()


def test_temperature_zero_takes_the_most_probable() -> None:
    logits_BV = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert sample(logits_BV, Sampling(temperature=0), _generators(2)).tolist() == [1, 0]


def test_draws_follow_the_softmax() -> None:
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0])
    draws = sample(logits_V.expand(20_000, 4), Sampling(temperature=2.0), _generators(20_000))
    shares = torch.bincount(draws, minlength=4) / 20_000
    assert torch.allclose(shares, (logits_V / 2).softmax(0), atol=0.015)


def test_top_k_keeps_ties() -> None:
    assert _kept([1.0, 3.0, 2.0, 2.0], top_k=2) == [1, 2, 3]
    assert _kept([1.0, 3.0, 2.0, 2.0], top_k=1) == [1]
    assert _kept([1.0, 3.0, 2.0, 2.0], top_k=9) == [0, 1, 2, 3]


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().tolist()
    assert _kept(logits, top_p=0.4) == [1]
    assert _kept(logits, top_p=0.6) == [1, 3]
    assert _kept(logits, top_p=0.8) == [1, 2, 3]
    assert _kept(logits, top_p=1.0) == [0, 1, 2, 3]
    assert _kept(logits, top_p=0.0) == [0, 1, 2, 3]


def test_filtered_tokens_never_come() -> None:
    logits_BV = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)).expand(5000, 50)
    sampling = Sampling(temperature=5.0, top_k=7, top_p=0.9)
    allowed = filtered(logits_BV[:1] / 5.0, sampling)[0].isfinite()
    draws = sample(logits_BV, sampling, _generators(5000))
    assert allowed[draws].all()
    assert len(set(draws.tolist())) == int(allowed.sum())


def test_a_row_draws_the_same_whoever_its_neighbours_are() -> None:
    logits_BV = torch.randn(5, 100, generator=torch.Generator().manual_seed(2))
    together = sample(logits_BV, Sampling(), _generators(5))
    alone = [sample(logits_BV[i : i + 1], Sampling(), _generators(1, seed=i)).item() for i in range(5)]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 1.5}],
)
def test_out_of_range_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        from_dict(Sampling, settings, where="command line")


def test_filters_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="no effect at temperature 0"):
        from_dict(Sampling, {"temperature": 0, "top_k": 5}, where="command line")


@pytest.mark.parametrize("settings", [{"temperature": 1e-40}, {"temperature": 1e-320}, {"top_p": 1e-323}])
def test_settings_next_to_zero_take_the_most_probable(settings: dict[str, float]) -> None:
    """Not an id behind the last, which draws from no probabilities at all give."""
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    assert sample(logits, Sampling(**settings), generators).tolist() == logits.argmax(-1).tolist()
