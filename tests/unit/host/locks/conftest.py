"""Requests of these tests are retried at once."""

import pytest

from flagbench.locks import session


@pytest.fixture(autouse=True)
def _retried_at_once(monkeypatch):
    monkeypatch.setattr(session.RETRIES, "backoff_factor", 0)
