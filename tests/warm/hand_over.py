"""Has a copy of the warmed-up process (see server.py) continue in the place of this one, which passes signals on and
ends as the copy does."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import sys


def hand_over(server, module, arguments):
    """Never returns. `server`: the path of its socket."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which the copy sets for itself
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(server)
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
            with contextlib.suppress(OSError):
                os.write(2, b"the warmed-up process is gone\n")
            os._exit(70)
        found += piece
    return found
