"""Small questions to the network stack: a free port, whether node 0 has a name yet, the interface towards it."""

import ipaddress
import queue
import socket
import threading
import time
from typing import Optional

from flagbench_cases.errors import CaseError, ExitCode
from flagbench_cases.interruption import Interruption

RETRY_SECONDS = 0.2


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


def wait_for_master(host: str, seconds: float, interruption: Interruption) -> None:
    """Wait until the name of node 0 resolves: on Kubernetes it does so only once that pod is there.

    Raises CaseError: timeout (6) after `seconds`, interrupted (7) as soon as a signal has come.
    """
    deadline = time.monotonic() + seconds
    reason = "no answer"
    answers = _ask(host)
    while True:
        try:
            error = answers.get(timeout=RETRY_SECONDS)
        except queue.Empty:
            error = None
        else:
            if error is None:
                return
            reason = str(error)
            time.sleep(RETRY_SECONDS)
            answers = _ask(host)
        if interruption:
            raise CaseError(interruption.words, "run again", ExitCode.INTERRUPTED)
        if time.monotonic() > deadline:
            raise CaseError(
                "the name of node 0, %s, did not resolve within %.0f s (%s)" % (host, seconds, reason),
                "check --master, and that node 0 has started",
                ExitCode.TIMEOUT,
            )


def _ask(host: str) -> "queue.Queue[Optional[OSError]]":
    """Ask the resolver in a thread of its own: its answer will be None, or the error.

    A name server that is silent holds the resolver for 10 s and more, in which no signal would be seen.
    """
    answers: "queue.Queue[Optional[OSError]]" = queue.Queue()

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            answers.put(error)
        else:
            answers.put(None)

    threading.Thread(target=ask, daemon=True).start()
    return answers
