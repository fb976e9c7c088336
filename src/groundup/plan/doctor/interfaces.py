"""Network interfaces of this machine: names, addresses, speeds."""

import dataclasses
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_ADDRESS, _NETMASK = 0x8915, 0x891B
"""SIOCGIFADDR and SIOCGIFNETMASK of Linux."""
_VIRTUAL = ("docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "tun", "tap", "kube")


@dataclasses.dataclass(frozen=True)
class Interface:
    """One interface that is up and has an IPv4 address.

    Attributes:
        name: As ``ip link`` lists it.
        address: With the length of its network's prefix, such as "10.0.0.3/24".
        speed: Megabits a second; 0 where it is not told.
    """

    name: str
    address: str
    speed: int

    @property
    def network(self) -> str:
        """The network that it is in."""
        return str(ipaddress.ip_interface(self.address).network)

    @property
    def is_loopback(self) -> bool:
        """Whether it reaches this machine only."""
        return ipaddress.ip_interface(self.address).is_loopback

    @property
    def is_virtual(self) -> bool:
        """Whether its name is one of containers or tunnels."""
        return self.name.startswith(_VIRTUAL)


def interfaces(root: Path = Path("/")) -> list[Interface]:
    """The interfaces of this machine, by name; none where the system is not Linux."""
    found = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        address, mask = (_ask(folder.name, number) for number in (_ADDRESS, _NETMASK))
        if address and mask:
            prefix = ipaddress.ip_interface(f"{address}/{mask}").network.prefixlen
            found.append(Interface(folder.name, f"{address}/{prefix}", _speed(folder)))
    return found


def usable(machines: Sequence[Sequence[Interface]]) -> list[str]:
    """Names of interfaces that all machines have in one network, fastest first; of one machine, all."""
    names = {one.name for one in machines[0]}.intersection(*({one.name for one in each} for each in machines))
    speeds = {}
    for name in sorted(names):
        mine = [one for each in machines for one in each if one.name == name]
        if len(machines) > 1 and (len({one.network for one in mine}) > 1 or mine[0].is_loopback):
            continue
        if not any(one.is_virtual for one in mine):
            speeds[name] = min(one.speed for one in mine)
    return sorted(speeds, key=lambda name: -speeds[name])


def _ask(name: str, request: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            answer = fcntl.ioctl(one, request, struct.pack("256s", name.encode()[:15]))
        except OSError:  # without an address
            return ""
    return socket.inet_ntoa(answer[20:24])


def _speed(folder: Path) -> int:
    try:
        return max(0, int((folder / "speed").read_text()))
    except (OSError, ValueError):  # virtual ones do not tell
        return 0
