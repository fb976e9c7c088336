import dataclasses

import pytest

from groundup.core.errors import ConfigError
from groundup.parallel.layout import Layout
from groundup.parallel.validate import validate_layout
from tests.instances import MODELS

GPT2 = dataclasses.replace(MODELS["gpt2"], num_heads=4, hidden_size=32, ffn_size=64)


def require(
    layout: Layout, *, world_size: int, batch: int = 8, micro_batch: int = 1, length: int = 32
) -> None:
    validate_layout(
        layout,
        GPT2,
        sequence_length=length,
        batch_sizes=(batch,),
        micro_batch_size=micro_batch,
        world_size=world_size,
    )


def test_dp_is_what_the_ranks_leave() -> None:
    assert Layout(tp=2).over(8) == Layout(dp=4, tp=2, shard=1)
    assert Layout(tp=2, zero=3).over(8) == Layout(dp=4, tp=2, zero=3, shard=4)
    assert Layout(dp=4, zero=1, shard=2).over(4) == Layout(dp=4, zero=1, shard=2)
    assert Layout().over(1) == Layout(dp=1, shard=1)


@pytest.mark.parametrize(
    ("layout", "world_size"),
    [(Layout(), 1), (Layout(), 8), (Layout(dp=2, tp=2), 4), (Layout(tp=4), 4), (Layout(zero=3, shard=2), 8)],
)
def test_layouts_that_work(layout: Layout, world_size: int) -> None:
    require(layout, world_size=world_size)


def test_all_reasons_come_at_once_with_the_nearest_layouts() -> None:
    with pytest.raises(ConfigError) as caught:
        require(Layout(dp=3, tp=3), world_size=8, batch=8)
    message = str(caught.value)
    assert "dp 3 x tp 3 are 9 ranks, there are 8" in message
    assert "global_batch_size 8 is not a multiple of micro_batch_size 1 x dp 3" in message
    assert "num_heads 4 is not divisible by tp 3" in message
    assert "Nearest that do: layout.dp=2 layout.tp=4 or layout.dp=4 layout.tp=2" in message


def test_shard_without_zero_and_uneven_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="shard has no effect with zero 0"):
        require(Layout(dp=2, shard=2), world_size=2)
    with pytest.raises(ConfigError, match="dp 4 is not a multiple of shard 3"):
        require(Layout(dp=4, zero=2, shard=3), world_size=4)


def test_what_is_proposed_works() -> None:
    with pytest.raises(ConfigError) as caught:
        require(Layout(tp=8), world_size=8)
    dp, tp = (int(part.split("=")[1].strip(".")) for part in str(caught.value).split("do: ")[1].split()[:2])
    require(Layout(dp=dp, tp=tp), world_size=8)


def test_fewer_ranks_are_proposed_where_their_number_is_free() -> None:
    with pytest.raises(ConfigError, match=r"layout.dp=1 layout.tp=2"):
        validate_layout(
            Layout(tp=3),
            GPT2,
            sequence_length=32,
            batch_sizes=(8,),
            micro_batch_size=1,
            world_size=3,
            is_fixed=False,
        )
