"""A process that does what a node's parent does after its run: it hands over a record and a bundle. It can be killed
at any moment; `flagbench results push` finishes what it left behind.

    python deliveries.py STORE OUT BUNDLE <record.json
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from flagbench_cases.node.delivery import UPLOAD_SECONDS, Delivery, Targets
from flagbench_cases.record import stores
from flagbench_cases.record.stores import Bundle
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode
from running import ENTRYPOINTS

BEGIN = b"begin\n"
"""On stderr when the delivery is about to begin."""


def start(store: str, out: Path, bundle: Path, record: dict[str, Any], **environment: str) -> subprocess.Popen[bytes]:
    """A delivery that has not begun yet, as its stderr will say; its stdout becomes the record."""
    child = subprocess.Popen(
        [sys.executable, __file__, store, str(out), str(bundle)],
        env={**os.environ, "PYTHONPATH": ENTRYPOINTS, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(record).encode())
    child.stdin.close()
    child.stdin = None
    return child


def bundle_of(path: Path, node: int = 0) -> Bundle:
    """A file as a node's bundle."""
    content = path.read_bytes()
    return Bundle(str(path), node, hashlib.sha256(content).hexdigest(), len(content))


def waiting(out: Path) -> dict[str, list[Path]]:
    """What waits below a folder, by the address that it is meant for."""
    found: dict[str, list[Path]] = {}
    for mark in sorted(out.glob("*.meant-for")):
        path = mark.with_suffix("")
        if path.exists():
            found.setdefault(mark.read_text(), []).append(path)
    return found


def push(out: Path) -> None:
    """Store what waits, by `flagbench results push OUT`."""
    if waiting(out):
        command = [sys.executable, "-m", "flagbench", "results", "push", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def main(store: str, out: str, bundle: str) -> int:
    """Deliver; returns the exit code."""
    record = json.load(sys.stdin)
    with Interruption() as interruption:
        opened = stores.open_store(store)
        assert opened is not None
        opened.check()
        targets = Targets(out, None, opened)
        patience = float(os.environ.get("PATIENCE", UPLOAD_SECONDS))
        delivery = Delivery(targets, record["record_id"], bundle_of(Path(bundle)), interruption, patience)
        os.write(2, BEGIN)
        try:
            code, _ = delivery.deliver_record(record, 1)
        except KeyboardInterrupt:
            code = int(ExitCode.INTERRUPTED)
    if interruption.abandoned:
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
