"""Small questions to the network stack."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases import network
from flagbench_cases.errors import CaseError, ExitCode
from flagbench_cases.interruption import Interruption

pytestmark = pytest.mark.image


def test_a_free_port_can_be_listened_on() -> None:
    port = network.free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(1)


def test_the_way_to_oneself_is_loopback() -> None:
    assert network.interface_towards("127.0.0.1") == "lo"


@pytest.mark.parametrize("host", ["host..svc", "a" * 64, ""])
def test_a_name_that_no_resolver_takes_leads_nowhere(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if not name:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert network.interface_towards(host) is None


def test_an_unreachable_network_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: socket.socket, address: object) -> None:
        raise OSError("Network is unreachable")

    class Socket(socket.socket):
        connect = unreachable

    monkeypatch.setattr(socket, "socket", Socket)
    assert network.interface_towards("127.0.0.1") is None


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wire1\t0007C70A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
wire0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
"""


def test_the_default_route_is_read_from_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(ROUTES)
    assert network.default_route_interface(str(table)) == "wire0"
    table.write_text(ROUTES.splitlines()[0] + "\n")
    assert network.default_route_interface(str(table)) is None
    assert network.default_route_interface(str(tmp_path / "nowhere")) is None


def test_a_name_that_means_this_machine_alone_is_not_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts gives a machine's own name the address 127.0.1.1."""
    own = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: own)
    monkeypatch.setattr(network, "default_route_interface", lambda: "wire0")
    assert network.interface_towards("node-0") == "wire0"
    assert network.interface_towards("127.0.1.1") == network.interface_towards("localhost") == "lo"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "RETRY_SECONDS", 0.001)


UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.usefixtures("eager")
def test_a_name_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes the name of node 0 exists only once its pod does."""
    answers: list[Any] = [UNKNOWN, UNKNOWN, socket.gaierror(-3, "Temporary failure in name resolution"), None]
    asked = []

    def getaddrinfo(host: str, port: Any) -> list[Any]:
        asked.append(host)
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    network.wait_for_master("job-0.job", 60.0, Interruption())
    assert asked == ["job-0.job"] * 4


@pytest.mark.usefixtures("eager")
def test_a_name_that_never_comes_is_a_timeout_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: Any) -> list[Any]:
        raise UNKNOWN

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(CaseError, match=r"job-0.job, did not resolve within 0 s \(.*not known\)") as caught:
        network.wait_for_master("job-0.job", 0.01, Interruption())
    assert caught.value.code == ExitCode.TIMEOUT


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A name server that answers nobody until the test is over."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: over.wait(60))
    yield
    over.set()


@pytest.mark.usefixtures("silent", "eager")
def test_a_silent_name_server_delays_neither_a_signal_nor_the_deadline() -> None:
    asked = Interruption()
    asked.number = 15
    began = time.monotonic()
    with pytest.raises(CaseError, match="interrupted by SIGTERM") as caught:
        network.wait_for_master("job-0.job", 60.0, asked)
    assert caught.value.code == ExitCode.INTERRUPTED
    with pytest.raises(CaseError, match="no answer"):
        network.wait_for_master("job-0.job", 0.01, Interruption())
    assert time.monotonic() - began < 5
