"""Errors as tests hold them: their type, what a CaseError carries, and the names and values that they say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_core.exit_codes import ExitCode


@contextlib.contextmanager
def refuses(kind: type[Exception], *named: Any, code: ExitCode | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block ends in a `kind` that names each of `named`; a CaseError has a remedy and `code`, else its type's."""
    with pytest.raises(kind) as caught:
        yield caught
    missing = [name for name in named if str(name) not in str(caught.value)]
    assert not missing, "%r does not name %s" % (str(caught.value), missing)
    if issubclass(kind, CaseError):
        assert (type(caught.value), caught.value.code) == (kind, kind.code if code is None else code)
        assert caught.value.remedy


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the DataError that a call ends in."""
    with refuses(DataError) as caught:
        call(*arguments, **options)
    return caught.value.message
