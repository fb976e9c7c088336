"""Links between ranks, measured on two gloo processes, and what is said of measurements."""

import contextlib
import dataclasses
import io
import json
import os
import pickle
import socket

import pytest

from groundup.cli.doctor_nodes import check_nodes
from groundup.core.errors import MachineError
from groundup.plan.doctor import rank_links
from groundup.plan.doctor.compare_ranks import compare_ranks
from groundup.plan.doctor.interfaces import Interface, interfaces, usable
from groundup.plan.doctor.rank_links import Links, RankReport
from tests.parallel.ranks import start_ranks

ETH = Interface("eth0", "10.0.0.3/24", 25_000)
IB = Interface("ib0", "10.1.0.3/16", 200_000)
LO = Interface("lo", "127.0.0.1/8", 0)
DOCKER = Interface("docker0", "172.17.0.1/16", 0)


def _rank(rank, port, folder):
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    if rank == 1:
        rank_links.__version__ = "0.0.1"  # as on a machine that was forgotten at an update
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            check_nodes(ranks=0, device="cpu", quick=True, as_json=True)
        except MachineError as error:
            (folder / f"{rank}.error").write_text(str(error))
    (folder / f"{rank}.json").write_text(out.getvalue())


def test_two_ranks_measure_their_links(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = start_ranks(_rank, (port, tmp_path), 2)
    while not ranks.join():
        pass
    assert not (tmp_path / "1.json").read_text()  # rank 0 speaks for all
    found = json.loads((tmp_path / "0.json").read_text())
    links = found["links"]
    assert set(links["all_reduce"]) == {"1024", "32768", "1048576"}
    assert all(seconds > 0 for seconds in links["all_reduce"].values())
    assert all(one["work_seconds"] > 0 for one in links["ranks"])
    assert links["ranks"][0]["next_bytes_per_second"] > 0
    assert abs(links["ranks"][1]["clock_offset"]) <= links["ranks"][1]["clock_error"] + 1  # of one clock
    assert links["by_interface"]["lo"] > 0
    statuses = {one["check"]: one["status"] for one in found["findings"]}
    assert {statuses[name] for name in ("all-reduce", "links", "clocks", "interfaces")} == {"ok"}
    (versions,) = [one for one in found["findings"] if one["check"] == "versions"]
    assert (
        versions["status"] == "problem" and f"rank 1 on {socket.gethostname()} has 0.0.1" in versions["found"]
    )
    assert [path.read_text() for path in tmp_path.glob("*.error")] == [
        "doctor --nodes: there is a problem between the ranks, as listed"
    ]


def links_of(*changes, rates=None):
    """Four ranks on two machines, some changed."""
    ranks = [
        RankReport(rank, f"node{rank // 2}", "H100", {"torch": "2.13"}, [LO, ETH], 1.0, 0.0, 0.001, 5e9)
        for rank in range(4)
    ]
    for rank, change in changes:
        ranks[rank] = dataclasses.replace(ranks[rank], **change)
    return Links(ranks, {1 << 20: 1e-3}, rates or {"eth0": 2e9}, "nccl")


def said(links):
    return [one for one in compare_ranks(links) if one.status != "ok"]


def test_equal_ranks_and_the_interface_that_they_share():
    links = links_of()
    assert not said(links)
    assert links.bus_rate(1 << 20) == pytest.approx(1.5 * (1 << 20) / 1e-3)
    (interface,) = [one for one in compare_ranks(links) if one.check == "interfaces"]
    assert interface.fix == "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"


@pytest.mark.parametrize(
    ("rank", "change", "check", "status", "text"),
    [
        (2, {"work_seconds": 2.0}, "slow rank", "warning", "rank 2 on node1 computes 2.0 times as long"),
        (
            1,
            {"next_bytes_per_second": 1e9},
            "links",
            "warning",
            "rank 1 on node0 to rank 2 on node1: 1.00 GB/s",
        ),
        (3, {"clock_offset": -2.0}, "clocks", "warning", "rank 3 on node1 is -2.0 s off"),
        (3, {"clock_offset": 90.0}, "clocks", "problem", "chronyc makestep"),
        (3, {"clock_offset": 2.0, "clock_error": 1.8}, "", "", ""),
        (
            1,
            {"versions": {"torch": "2.12"}},
            "versions",
            "problem",
            "torch is 2.13, and rank 1 on node0 has 2.12",
        ),
        (1, {"device": "A100"}, "devices", "warning", "3 x H100, 1 x A100"),
    ],
)
def test_the_one_that_differs_is_named(rank, change, check, status, text):
    found = said(links_of((rank, change)))
    assert [(one.check, one.status) for one in found] == ([(check, status)] if check else [])
    assert all(text in f"{one.found} {one.fix}" for one in found)


def test_interfaces_that_machines_share():
    assert usable([[LO, ETH, IB, DOCKER], [LO, ETH, IB, DOCKER]]) == ["ib0", "eth0"]
    assert usable([[LO, ETH]]) == ["eth0", "lo"]
    elsewhere = dataclasses.replace(ETH, address="192.168.0.3/24")
    assert usable([[LO, ETH], [LO, elsewhere]]) == []
    one = [(0, {"interfaces": [LO, ETH]}), (1, {"interfaces": [LO, ETH]})]
    other = [(2, {"interfaces": [LO, elsewhere]}), (3, {"interfaces": [LO, elsewhere]})]
    (found,) = said(links_of(*one, *other))
    assert "no name that all machines share (node0: lo 127.0.0.1/8, eth0 10.0.0.3/24; node1: " in found.found


def test_a_faster_interface_that_does_not_reach_is_not_proposed():
    both = [(rank, {"interfaces": [LO, ETH, IB]}) for rank in range(4)]
    (found,) = said(links_of(*both, rates={"ib0": 0.0, "eth0": 1e9}))
    assert found.found == "ranks do not meet over ib0"
    findings = list(compare_ranks(links_of(*both, rates={"ib0": 9e9, "eth0": 1e9})))
    assert findings[-1].fix.startswith("export NCCL_SOCKET_IFNAME=ib0")


def test_the_interfaces_of_this_machine():
    found = {one.name: one for one in interfaces()}
    assert found["lo"].is_loopback and found["lo"].network == "127.0.0.0/8"
    assert pickle.loads(pickle.dumps(found)) == found  # ranks send them to each other
