"""What the measurements between ranks say: the slow one, clocks, versions, and which interface to take."""

import statistics
from collections import Counter
from collections.abc import Iterator

from groundup.plan.doctor.finding import Finding
from groundup.plan.doctor.interfaces import usable
from groundup.plan.doctor.rank_links import Links, RankReport

_SLOWER = 1.5
_SLOW_LINK = 0.5
_SKEW_SECONDS, _MUCH_SKEW_SECONDS = 0.5, 30.0


def compare_ranks(links: Links) -> Iterator[Finding]:
    """Yields what should be known, and done, about the ranks of a run."""
    yield from _all_reduce(links)
    yield from _speeds(links)
    yield from _neighbours(links)
    yield from _clock_skew(links)
    yield from _same(links)
    yield from _proposal(links)


def _all_reduce(links: Links) -> Iterator[Finding]:
    for size, seconds in links.all_reduce.items():
        found = f"{_bytes(size)}: {1e3 * seconds:.3f} ms, {_rate(links.bus_rate(size))} sent by each rank"
        yield Finding("all-reduce", "ok", f"{found} ({links.backend}, {len(links.ranks)} ranks)")


def _speeds(links: Links) -> Iterator[Finding]:
    usual = statistics.median_low(one.work_seconds for one in links.ranks)
    slow = [one for one in links.ranks if one.work_seconds > _SLOWER * usual]
    for one in slow:
        yield Finding(
            "slow rank",
            "warning",
            f"{_name(one)} computes {one.work_seconds / usual:.1f} times as long as the others",
            "All ranks wait for the slowest in every step.",
            f"Look at {one.host}: other processes (nvidia-smi, top), heat and power limits"
            " (nvidia-smi -q -d PERFORMANCE); or leave it out.",
        )
    if not slow:
        yield Finding("slow rank", "ok", f"none: {1e3 * usual:.2f} ms for the same product")


def _neighbours(links: Links) -> Iterator[Finding]:
    """Rates to the next rank, within machines and across them apart."""
    ranks = links.ranks
    pairs = [(one, ranks[(one.rank + 1) % len(ranks)]) for one in ranks if one.next_bytes_per_second]
    for is_within in (True, False):
        group = [(one, other) for one, other in pairs if (one.host == other.host) == is_within]
        if not group:
            continue
        usual = statistics.median_high(one.next_bytes_per_second for one, _ in group)
        where = "within a machine" if is_within else "across machines"
        yield Finding("links", "ok", f"{_rate(usual)} between neighbours {where}")
        for one, other in group:
            rate = _rate(one.next_bytes_per_second)
            if one.next_bytes_per_second < _SLOW_LINK * usual:
                yield Finding(
                    "links",
                    "warning",
                    f"{_name(one)} to {_name(other)}: {rate}, elsewhere {_rate(usual)}",
                    "A ring is as fast as its slowest link.",
                    "Look at cables and counters (ethtool -S, ibstat), at nvidia-smi topo -m, and at what"
                    " else uses the link.",
                )


def _clock_skew(links: Links) -> Iterator[Finding]:
    worst = max(links.ranks, key=lambda one: abs(one.clock_offset) - one.clock_error)
    skew = max(0.0, abs(worst.clock_offset) - worst.clock_error)
    found = (
        f"at most {1e3 * max(abs(one.clock_offset) + one.clock_error for one in links.ranks):.2f} ms apart"
    )
    if skew < _SKEW_SECONDS:
        yield Finding("clocks", "ok", found)
    else:
        yield Finding(
            "clocks",
            "problem" if skew > _MUCH_SKEW_SECONDS else "warning",
            f"{_name(worst)} is {worst.clock_offset:+.1f} s off rank 0",
            "Logs cannot be compared, and locks on a shared disk seem to be of another time.",
            f"On {worst.host}: chronyc makestep, or timedatectl set-ntp true",
        )


def _same(links: Links) -> Iterator[Finding]:
    """Versions and devices, of which there should be one."""
    is_same = True
    for name in dict.fromkeys(name for one in links.ranks for name in one.versions):
        versions = [one.versions.get(name, "none") for one in links.ranks]
        usual = Counter(versions).most_common(1)[0][0]
        others = [one for one, version in zip(links.ranks, versions, strict=True) if version != usual]
        if others:
            is_same = False
            which = ", ".join(f"{_name(one)} has {one.versions.get(name, 'none')}" for one in others[:4])
            why = "Ranks of different versions compute different things, or do not understand each other."
            fix = "Install the same on all machines, or one environment on a shared disk."
            yield Finding("versions", "problem", f"{name} is {usual}, and {which}", why, fix)
    devices = Counter(one.device for one in links.ranks)
    if len(devices) > 1:
        is_same = False
        found = ", ".join(f"{count} x {device}" for device, count in devices.most_common())
        why = "The slowest decides the speed, and the smallest the size."
        yield Finding("devices", "warning", found, why, "Use machines of one kind for a run.")
    if is_same:
        versions_in_words = ", ".join(
            f"{name} {version}" for name, version in links.ranks[0].versions.items()
        )
        yield Finding(
            "versions", "ok", f"the same on all ranks: {versions_in_words}; {links.ranks[0].device}"
        )


def _proposal(links: Links) -> Iterator[Finding]:
    """The interface over which all-reduce was fastest, else that of the highest speed."""
    hosts = {one.host: one.interfaces for one in links.ranks}
    names = usable(list(hosts.values()))
    rates = {name: links.by_interface.get(name, 0.0) for name in names}
    for name, rate in rates.items():
        if not rate:
            why = "Its addresses do not reach each other."
            yield Finding(
                "interfaces", "warning", f"ranks do not meet over {name}", why, "Do not name it below."
            )
    measured = ", ".join(f"{name} {_rate(rate)}" for name, rate in rates.items() if rate)
    if len(hosts) == 1:
        yield Finding(
            "interfaces", "ok", f"one machine, nothing to be set ({measured or 'no address'} by gloo)"
        )
    elif any(rates.values()):
        best = max(names, key=lambda name: rates[name])
        fix = f"export NCCL_SOCKET_IFNAME={best} GLOO_SOCKET_IFNAME={best}"
        yield Finding("interfaces", "ok", f"all-reduce by gloo: {measured}", "", fix)
    else:
        each = "; ".join(
            f"{host}: {', '.join(f'{one.name} {one.address}' for one in there) or 'none'}"
            for host, there in hosts.items()
        )
        why = "Libraries then guess, and may take one that the others do not reach."
        fix = "On each machine, export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with its own name."
        yield Finding("interfaces", "warning", f"no name that all machines share ({each})", why, fix)


def _name(one: RankReport) -> str:
    return f"rank {one.rank} on {one.host}"


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"
