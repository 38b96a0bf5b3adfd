"""Small questions to the network stack."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from flagbench_cases import network

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
