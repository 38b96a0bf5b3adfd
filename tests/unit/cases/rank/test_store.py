"""The host of the store in which ranks meet: a process that cannot serve says why, as itself."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from flagbench_cases.rank import store
from flagbench_cases.shared.errors import CaseError

pytestmark = pytest.mark.image


def test_a_port_in_use_is_a_reason(capfd: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(CaseError) as raised:
        store.host_store({"host": "127.0.0.1", "port": other.getsockname()[1]})
    assert raised.value.code == 4
    assert "listen" in raised.value.message


def test_an_unexpected_error_is_a_reason_and_does_not_leave_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise TypeError("an unknown argument")

    monkeypatch.setattr(store, "TCPStore", refuse)
    with pytest.raises(CaseError) as raised:
        store.host_store({"host": "127.0.0.1", "port": 1})
    assert raised.value.message.endswith("an unknown argument")
