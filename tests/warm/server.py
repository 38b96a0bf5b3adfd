"""A process that has imported torch and what the cases import, and continues others as copies of itself.

Importing is nearly all of what a short run costs. Runs whose isolation is not what a test is about share it: each
process of theirs that would import torch hands its work (hand_over.py) to a fork of this one, which takes over
arguments, environment, folder and standard streams. What the copy does, it does itself; nothing was computed before.
It is worth its code: the engine tests of failures and signals cost 48 CPU-s with it, and 145 without.

    python server.py DESCRIPTOR
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
import warnings

LIBRARIES = ("torch.utils.data", "safetensors.torch", "tokenizers", "psutil")
# Each imported by some case only, and not installed everywhere.
OPTIONAL = (
    "_pytest.assertion.rewrite",  # what a function of a test module needs in a rank
    "torch._dynamo",  # which torch's optimizers import when they are made
    "transformers.models.llama.modeling_llama",
    "peft",
    "sentencepiece",
    "h5py",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.datasets.gpt_dataset",
)
PR_SET_PDEATHSIG = 1


def main(descriptor):
    """Serve a listening socket until the end of the process that started this one; import when first asked."""
    _die_with_parent()
    server = socket.socket(fileno=descriptor)
    select.select([server], [], [])
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Megatron-Core's about libraries for CUDA
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there is not to be looked through by every copy
    gc.enable()
    _serve(server)


def _serve(server):
    """Fork a copy for each that asks, and tell how it ended; end it with the process that it stands for."""
    ended, noticed = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(noticed, False)
    signal.set_wakeup_fd(noticed)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    copies = {}  # of each connection
    while True:
        ready = select.select([server, ended, *copies], [], [])[0]
        for connection in copies.keys() & set(ready):  # it sends nothing: it was killed
            os.kill(copies[connection], signal.SIGKILL)
            connection.close()
            del copies[connection]
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(ended, 4096)
            _tell_ends(copies)
        if server in ready:
            connection = server.accept()[0]
            asked, files = _read(connection)
            copy = os.fork() if asked else None
            if copy == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (server, connection, *copies):
                    other.close()
                os.close(ended)
                os.close(noticed)
                _continue(asked, files)
            for file in files:
                os.close(file)
            if copy is None:
                connection.close()
                continue
            copies[connection] = copy
            with contextlib.suppress(OSError):  # it is read as killed
                connection.sendall(struct.pack("<q", copy))


def _tell_ends(copies):
    """Tell those that asked how their copies ended; also called when a copy was stopped, which is not told."""
    with contextlib.suppress(ChildProcessError):
        while True:
            copy, status = os.waitpid(-1, os.WNOHANG)
            if not copy:
                break
            for connection in [connection for connection in copies if copies[connection] == copy]:
                with contextlib.suppress(OSError):
                    connection.sendall(struct.pack("<q", status))
                connection.close()
                del copies[connection]


def _read(connection):
    """What is asked, and standard streams; None and no streams where it was killed before it had asked."""
    files, text = (), b""
    connection.settimeout(5.0)  # a process that was stopped in the middle is not to hold up all others
    try:
        head, control, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(12))
        if not head:
            return None, ()
        files = struct.unpack("3i", control[0][2])
        (size,) = struct.unpack("<Q", head)
        while len(text) < size:
            piece = connection.recv(size - len(text))
            if not piece:
                return None, files
            text += piece
    except socket.timeout:
        return None, files
    connection.settimeout(None)
    return json.loads(text.decode("utf-8", "surrogateescape")), files


def _continue(asked, files):
    """Be the process that asked."""
    _die_with_parent()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.umask(asked["umask"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # remembered from the environment
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:] = [asked["folder"], *asked["path"]]
    sys.argv = ["-m", *asked["arguments"]]
    code = 0
    try:
        _customise(os.environ.get("PYTHONPATH", "").split(os.pathsep))
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def _customise(folders):
    """What the interpreter would have imported as it started, had ours not come first."""
    ours = os.path.dirname(os.path.abspath(__file__))
    files = (os.path.join(folder, "sitecustomize.py") for folder in folders if folder != ours)
    file = next(filter(os.path.exists, files), None)
    if file is not None:  # not runpy.run_path, which empties the namespace when it is done
        with open(file, encoding="utf-8") as source:
            exec(compile(source.read(), file, "exec"), {"__name__": "sitecustomize"})


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
