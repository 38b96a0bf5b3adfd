"""Network helpers: a free port, a loopback check, and the interface that reaches node 0."""

from __future__ import annotations

import errno
import ipaddress
import socket

from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode

LOOPBACK_SECONDS = 5.0


def free_port(host: str = "127.0.0.1") -> int:
    """A currently unused port on `host`; on every address if `host` is empty."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def check_loopback(port: int = 0) -> None:
    """Raise CaseError (ENGINE) if this machine cannot connect to itself, which even a single-node run needs.

    `port` is the requested port, if any, which must be unused.
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
            reason = f"cannot listen on port {port} of --master ({error.strerror})"
            raise CaseError(reason, "use another port, or omit --master", ExitCode.ENGINE) from None
        reason = f"this machine cannot connect to itself at 127.0.0.1 ({error.strerror or error})"
        if _loopback_is_up():
            remedy = "check the address of lo (ip address show lo) and the firewall rules for it"
        else:
            remedy = "bring up the loopback interface: ip link set lo up"
        raise CaseError(reason, remedy, ExitCode.ENGINE) from None


def _loopback_is_up() -> bool:
    import psutil

    loopback = psutil.net_if_stats().get("lo")
    return loopback is not None and loopback.isup


def interface_towards(host: str) -> str | None:
    """The network interface that this machine uses to reach `host`; None if it cannot be determined.

    Without it Gloo binds to the address that the host's own name resolves to, which in containers and namespaces is
    often unreachable for others. Connecting a datagram socket sends nothing; it only consults the routing table.
    """
    import psutil

    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            local_address = probe.getsockname()[0]
    except (OSError, UnicodeError):  # UnicodeError: a name that IDNA cannot encode
        return None
    if ipaddress.ip_address(local_address.split("%")[0]).is_loopback and not _means_loopback(host):
        # Debian maps a machine's own name to 127.0.1.1, but the other nodes must be able to reach node 0.
        return default_route_interface()
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == local_address for entry in addresses):
            return name
    return None


def _means_loopback(host: str) -> bool:
    """Whether `host` names loopback explicitly, rather than resolving to it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_route_interface(table: str = "/proc/net/route") -> str | None:
    """The interface of the IPv4 default route in the kernel's table; None if there is no such route."""
    try:
        with open(table, encoding="utf-8") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    for row in rows:
        if len(row) > 2 and row[1] == "00000000":
            return row[0]
    return None
