"""Errors as tests hold them: their type, what a CaseError carries, and the names and values that they say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from flagbench_cases.shared.errors import CaseError


@contextlib.contextmanager
def refuses(kind: type[Exception], *named: Any) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block ends in a `kind` that names each of `named`; a CaseError has its type's exit code and a remedy."""
    with pytest.raises(kind) as caught:
        yield caught
    missing = [name for name in named if str(name) not in str(caught.value)]
    assert not missing, "%r does not name %s" % (str(caught.value), missing)
    if kind is not CaseError and issubclass(kind, CaseError):
        assert (type(caught.value), caught.value.code) == (kind, kind.code)
        assert caught.value.remedy
