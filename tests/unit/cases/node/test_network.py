"""Small questions to the network stack."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagbench_cases.node import network
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode

pytestmark = pytest.mark.image


@pytest.mark.parametrize("host", ["host..svc", "a" * 64, ""])
def test_an_invalid_name_has_no_interface(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if not name:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert network.interface_towards(host) is None


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


def test_a_name_for_this_machine_alone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts gives a machine's own name the address 127.0.1.1."""
    own = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: own)
    monkeypatch.setattr(network, "default_route_interface", lambda: "wire0")
    assert network.interface_towards("node-0") == "wire0"
    assert network.interface_towards("127.0.1.1") == network.interface_towards("localhost") == "lo"


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        with pytest.raises(CaseError) as caught:
            network.check_loopback(taken.getsockname()[1])
    assert caught.value.code == ExitCode.ENGINE
    network.check_loopback()


@pytest.mark.parametrize(("up", "remedy"), [(False, "ip link set lo up"), (True, "ip address show lo")])
def test_no_loopback_names_what_to_look_at(up: bool, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("psutil.net_if_stats", lambda: {"lo": SimpleNamespace(isup=up)})
    with pytest.raises(CaseError) as caught:
        network.check_loopback()
    assert remedy in caught.value.remedy
