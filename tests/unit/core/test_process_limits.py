"""How many ranks processors take, what says that no more processes or threads can be started, and why."""

import errno
import os
import resource

import pytest

from flagbench_core import process_limits

pytestmark = pytest.mark.image


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("pthread_create failed"), True),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), True),
        (RuntimeError("socket: Too many open files"), True),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (RuntimeError("something else"), False),
        (ValueError("can't start new thread"), False),
    ],
)
def test_what_is_a_refusal(error, expected):
    assert process_limits.is_refusal(error) is expected


def test_ranks_share_a_processor_up_to_four_of_them():
    processors = len(os.sched_getaffinity(0))
    assert process_limits.excess_of_ranks(4 * processors) is None
    assert "--gpus %d" % (4 * processors + 1) in (process_limits.excess_of_ranks(4 * processors + 1) or "")


def test_the_limit_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = 54321 if before[1] == resource.RLIM_INFINITY else before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, before[1]))
        assert "ulimit -u is %d" % limit in process_limits.reason(RuntimeError("can't start new thread"))
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
