"""Who hangs, when several ranks do not get on; and what a rank's stacks tell."""

import threading
from traceback import FrameSummary

import pytest

from groundup.launch import stack_dump
from groundup.launch.heartbeat import Heartbeat
from groundup.launch.straggler import Stall, find_straggler

NOW = 1000.0
HERE, THERE = "node1", "node2"


def stall(rank, waits_for="", step=12, num_records=50) -> Stall:
    return Stall(
        rank=rank,
        host=HERE,
        step=step,
        phase="training",
        num_records=num_records,
        seconds=60.0,
        waits_for=waits_for,
        at="read in x.py:1",
        stack="",
        launch="",
    )


def verdict(*stalls, silent=0.0, host=HERE, world_size=3):
    """Of three ranks, those that have not stalled were last heard of so many seconds ago."""
    found = {one.rank: one for one in stalls}
    heartbeats = {
        rank: Heartbeat(last_beat=NOW - (0 if rank in found else silent), host=host)
        for rank in range(world_size)
    }
    return find_straggler(found, heartbeats, host=HERE, now=NOW, world_size=world_size)


WAITS = "all_reduce, called by sum in mesh.py:58"


def test_who_waits_for_nobody_is_the_culprit_whatever_the_others_say():
    found = verdict(stall(0, WAITS), stall(1), stall(2, WAITS))
    assert (found.ranks, found.silent) == ((1,), False)
    assert found.reason == f"2 ranks (0, 2) wait in {WAITS}"


def test_of_two_that_wait_for_nobody_the_one_behind_is():
    assert verdict(stall(0, num_records=51), stall(2, num_records=50)).ranks == (2,)
    assert verdict(stall(0, step=13, num_records=40), stall(2, step=12, num_records=41)).ranks == (2,)


def test_a_rank_that_still_gets_on_is_waited_for():
    assert verdict(stall(0, WAITS), stall(2, WAITS), silent=2.0) is None


@pytest.mark.parametrize(("host", "seconds", "is_culprit"), [(HERE, 20, 1), (THERE, 20, 0), (THERE, 120, 1)])
def test_a_rank_without_a_sign_of_life_is_the_culprit(host, seconds, is_culprit):
    found = verdict(stall(0, WAITS), stall(2, WAITS), silent=seconds, host=host)
    assert (found is not None) == is_culprit
    assert not is_culprit or (found.ranks == (1,) and found.silent)


def test_a_rank_that_has_left_no_page_is_not_accused():
    assert (
        find_straggler({0: stall(0, WAITS)}, {0: Heartbeat(last_beat=NOW)}, host=HERE, now=NOW, world_size=2)
        is None
    )


def test_where_all_wait_the_one_behind_or_elsewhere_is_the_culprit():
    behind = verdict(stall(0, WAITS), stall(1, WAITS, num_records=49), stall(2, WAITS))
    assert behind.ranks == (1,)
    assert "behind" in behind.reason
    elsewhere = verdict(stall(0, WAITS), stall(1, "barrier"), stall(2, WAITS))
    assert elsewhere.ranks == (1,)
    assert f"2 of 3 in {WAITS}" in elsewhere.reason


def test_where_all_wait_at_the_same_place_none_is_singled_out():
    found = verdict(*(stall(rank, WAITS) for rank in range(3)))
    assert found.ranks == (0, 1, 2)
    assert "wait for each other" in found.reason


def frame(path, name, line=1) -> FrameSummary:
    return FrameSummary(f"/site-packages/{path}", line, name, lookup_line=False, line="")


OURS = frame("groundup/parallel/mesh.py", "sum", 58)


@pytest.mark.parametrize(
    ("inner", "collective_in"),
    [
        (
            [
                frame("torch/distributed/c10d_logger.py", "wrapper"),
                frame("torch/distributed/distributed_c10d.py", "all_reduce"),
            ],
            WAITS,
        ),
        (
            [
                frame("torch/distributed/_functional_collectives.py", "wait_tensor"),
                frame("torch/_ops.py", "__call__"),
            ],
            "wait_tensor, called by sum in mesh.py:58",
        ),
        ([], ""),
        ([frame("torch/nn/functional.py", "linear")], ""),
        # A stage of a pipeline computes: the schedule that called it does not wait.
        (
            [
                frame("torch/distributed/pipelining/schedules.py", "step"),
                frame("groundup/models/gpt2.py", "forward"),
            ],
            "",
        ),
    ],
)
def test_a_stack_tells_whether_it_waits_for_other_ranks(inner, collective_in):
    assert stack_dump.collective_in([OURS, *inner]) == collective_in


def test_a_dump_shows_the_main_thread_from_another():
    found = []
    watch = threading.Thread(target=lambda: found.append(stack_dump.dump_stacks()))
    watch.start()
    watch.join()
    (stacks,) = found
    assert stacks.text.startswith("Thread MainThread:")
    assert "test_a_dump_shows_the_main_thread_from_another" in stacks.text
    assert (stacks.collective, stacks.compiles) == ("", False)
