"""In every Python that a warmed-up run starts: those that import torch are continued by a copy of a process that has
imported it (see server.py). This process stays, passes signals on, and ends as the copy does."""

import os
import sys

MODULES = ("flagbench_cases.engines.elastic", "flagbench_cases.rank.worker", "flagbench_cases.prepare.job")


def main():
    """Hand this process's work over, if it is of MODULES; return at once otherwise."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode("utf-8", "surrogateescape").split("\0")[1:-1]
    options = words[: words.index("-m")] if "-m" in words else []
    if not (options or words[:1] == ["-m"]) or words[len(options) + 1] not in MODULES:
        return
    if any(not option.startswith("-") for option in options):
        return
    import ctypes
    import json
    import signal
    import socket
    import struct

    module, arguments = words[len(options) + 1], words[len(options) + 2 :]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which the copy sets for itself
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["FLAGBENCH_TEST_WARM"])
    umask = os.umask(0)
    os.umask(umask)
    asked = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "umask": umask,
    }
    text = json.dumps(asked).encode("utf-8", "surrogateescape")
    files = struct.pack("3i", 0, 1, 2)
    connection.sendmsg([struct.pack("<Q", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    connection.sendall(text)
    (copy,) = struct.unpack("<q", _read(connection, 8))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(copy, number))
    for descriptor in (0, 1, 2):  # the copy has them; a reader waits for all of their writers
        os.close(descriptor)
    (status,) = struct.unpack("<q", _read(connection, 8))
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # whose handler cannot be set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _read(connection, size):
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            os._exit(70)  # the server is gone
        found += piece
    return found


if "FLAGBENCH_TEST_WARM" in os.environ:
    main()
