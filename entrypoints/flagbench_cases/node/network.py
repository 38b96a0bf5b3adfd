"""Small questions to the network stack: a free port, whether loopback is up, the interface towards node 0."""

import errno
import ipaddress
import socket
from typing import Optional

from flagbench_cases.shared.errors import CaseError, ExitCode

LOOPBACK_SECONDS = 5.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now, on loopback; on every address where `host` is empty."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def check_loopback(port: int = 0) -> None:
    """Raise CaseError (15) where this machine cannot talk to itself, which even the ranks of one node must.

    `port` is the one that was asked for, if any: nothing else may listen on it.
    """
    try:
        with socket.socket() as listener, socket.socket() as client:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            client.settimeout(LOOPBACK_SECONDS)
            client.connect(listener.getsockname())
    except OSError as error:
        if port and error.errno in (errno.EADDRINUSE, errno.EACCES):
            words = "the port %d of --master cannot be listened on (%s)" % (port, error.strerror)
            raise CaseError(words, "give another port, or leave out --master", ExitCode.ENGINE) from None
        words = "this machine cannot reach itself at 127.0.0.1 (%s)" % (error.strerror or error)
        raise CaseError(words, "bring up its loopback interface: ip link set lo up", ExitCode.ENGINE) from None


def interface_towards(host: str) -> Optional[str]:
    """The interface whose address this machine would use to talk to `host`; None where that cannot be said.

    Gloo otherwise binds to whatever the host's own name resolves to, which in containers and namespaces is often
    an address nobody else can reach. Connecting a datagram socket sends nothing: it only asks the routing table.
    """
    import psutil

    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
    except (OSError, UnicodeError):  # the latter for a name that cannot be encoded for the resolver
        return None
    if ipaddress.ip_address(own.split("%")[0]).is_loopback and not _means_loopback(host):
        # Debian maps a machine's own name to 127.0.1.1; node 0 must still be found by the others.
        return default_route_interface()
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == own for entry in addresses):
            return name
    return None


def _means_loopback(host: str) -> bool:
    """Whether loopback was asked for, and not just come upon through the name of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_route_interface(table: str = "/proc/net/route") -> Optional[str]:
    """The interface of the IPv4 default route, by the kernel's table; None without one."""
    try:
        with open(table, encoding="utf-8") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    return next((row[0] for row in rows if len(row) > 2 and row[1] == "00000000"), None)
