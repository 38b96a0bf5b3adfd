"""The store of torch.distributed in which the ranks of a job meet. A process of its own hosts it.

Rank 0 forks the host, which costs little after it has imported torch. The host outlives rank 0: when rank 0 ends, the
other ranks do not lose the store and with it the reason why they end. It ends with its node's parent process.
"""

from __future__ import annotations

import contextlib
import os
import select
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import Store, TCPStore

from flagbench_cases.shared.errors import CaseError

_LISTENING = b"listening"


def host_store(plan: dict[str, Any]) -> None:
    """Fork the host of the store, and wait until it listens. Raises CaseError if it cannot, OSError if no process can
    be forked."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        _host(plan, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    if answer != _LISTENING:
        reason = answer.decode("utf-8", "replace").strip().split("\n")[0]
        message = f"the ranks could not be started: {reason or 'the host of their store ended'}"
        raise CaseError(message, "see the log above; check --master on every node")


def _host(plan: dict[str, Any], answers: int) -> NoReturn:
    """Serve the store until the parent process of the node closes the pipe that is stdin.

    No error leaves this function: the copy of rank 0 would report it as that rank's failure.
    """
    try:
        store = TCPStore(plan["host"], plan["port"], None, True, wait_for_workers=False)
        os.write(answers, _LISTENING)
        os.close(answers)
        parent = select.poll()
        parent.register(0, 0)  # no event but its end: the byte in the pipe is for rank 0
        parent.poll()
        del store
    except Exception as error:
        with contextlib.suppress(OSError):  # rank 0 has ended
            os.write(answers, str(error).encode("utf-8", "replace"))
    finally:
        os._exit(0)


def join_store(plan: dict[str, Any], world: int) -> Store:
    """Connect to the store, and return it once all `world` ranks have. Raises RuntimeError at the time limit."""
    limit = timedelta(seconds=plan["join_timeout"])
    store = TCPStore(plan["host"], plan["port"], None, False, limit, wait_for_workers=False)
    if store.add("joined", 1) == world:
        store.set("all joined", "1")
    store.wait(["all joined"], limit)
    return store
