"""Small questions to the network stack: a free port, and the interface that leads to node 0."""

import socket
from typing import Optional


def free_port() -> int:
    """A port that nothing listens on now, on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == own for entry in addresses):
            return name
    return None
