"""Base images that stand for the vendors': laid out as theirs are, with a torch that runs on processors.

A vendor's base is tens of gigabytes behind a registry. What the image of a stack relies on is little: a Debian or an
Ubuntu with apt, an interpreter at the manifest's path, and a torch that must stay as it is. The stand-ins have that.
Their interpreters and their torch are copied from environments of this machine, so that nothing is downloaded.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flagbench.images.docker import BuildRequest, DockerEngine
from flagbench.images.render.directory import context_tar, make_build_directory

DEBIAN = "debian:bookworm-slim"
FOLDER = Path(__file__).parent / "dockerfiles"
PREFIX = "flagbench-standin"
LABEL = "dev.flagbench.standin"

# What `import torch` needs (Requires-Dist of the wheels for processors), and numpy, which every vendor's base has.
TORCH_1 = ("torch", "numpy", "typing_extensions")
# pip too: Debian's own never uninstalls what its distribution installed, as the vendors' upstream pip tries to.
TORCH_2 = (*TORCH_1, "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "pip", "setuptools", "sympy")
# What vLLM imports beside torch and its own folder.
VLLM = (
    *("transformers", "tokenizers", "safetensors", "sentencepiece", "huggingface_hub", "regex", "tqdm", "packaging"),
    *(
        "pyyaml",
        "requests",
        "charset-normalizer",
        "urllib3",
        "certifi",
        "idna",
        "httpx2",
        "httpcore2",
        "h11",
        "anyio",
    ),
    *("truststore", "annotated-doc", "msgspec", "psutil"),
)

# Of no use at run time, and a large part of the files.
LEFT_OUT = ("/test/", "/tests/", "/torch/include/", "/share/", "/__pycache__/", "/idlelib/", "/turtledemo/")

LIST_FILES = """
import json, sys
from importlib import metadata
files = {}
for name in sys.argv[1:]:
    for path in metadata.files(name):
        files[str(path)] = str(path.locate())
json.dump(files, sys.stdout)
"""


class Python(NamedTuple):
    """An environment of this machine to copy from: its interpreter, and the packages that are taken."""

    executable: str
    packages: tuple[str, ...]
    with_prefix: bool
    """Whether the interpreter itself is taken too, with its standard library and pip."""


class Base(NamedTuple):
    """One stand-in: its image, what it is built from, and the stand-in below it."""

    dockerfile: str
    python: Python | None
    below: str | None = None
    folder: Path | None = None
    """A folder of packages that is taken too."""


def image(name: str) -> str:
    """The reference of a stand-in."""
    return f"{PREFIX}/{name}:latest"


def bases(python38: str, python311: str, serving: Path) -> dict[str, Base]:
    """Every stand-in that has to be built, by name.

    Args:
        python38: an interpreter of Python 3.8 whose environment has torch 1.12.
        python311: one of Python 3.11 whose environment has a torch for processors.
        serving: the folder with vLLM of `make .venv/.serving`.
    """
    return {
        "python38": Base("python38", Python(python38, TORCH_1, with_prefix=True)),
        "torch": Base("torch", Python(python311, TORCH_2, with_prefix=False)),
        "cuda": Base("cuda", None, below="python38"),
        "toolkit": Base("toolkit", None, below="cuda"),
        "hopper": Base("hopper", None, below="torch"),
        "conda": Base("conda", None, below="torch"),
        "vllm": Base("vllm", Python(python311, VLLM, with_prefix=False), below="torch", folder=serving),
    }


def ensure(name: str, every: dict[str, Base], engine: DockerEngine) -> str:
    """Build a stand-in where the engine has it not already, made from the same files; returns its reference."""
    base = every[name]
    below = None if base.below is None else ensure(base.below, every, engine)
    dockerfile = (FOLDER / f"{base.dockerfile}.Dockerfile").read_text(encoding="utf-8")
    inputs = {} if base.python is None else _inputs(base.python)
    if base.folder is not None:
        for path in base.folder.rglob("*"):
            if path.is_file() and _wanted(f"/{path.relative_to(base.folder)}"):
                inputs[f"folder/{path.relative_to(base.folder)}"] = path
    found = engine.inspect(below or DEBIAN)
    assert found is not None, f"there is no image {below or DEBIAN}"
    key = _key(found.id, dockerfile, inputs)
    there = engine.inspect(image(name))
    if there is None or there.labels.get(LABEL) != key:
        context = context_tar(make_build_directory(f"standin/{name}", dockerfile, {}), inputs)
        engine.build(BuildRequest(context, tags=(image(name),), labels={LABEL: key}))
    return image(name)


def _key(below: str, dockerfile: str, inputs: dict[str, Path]) -> str:
    """What a stand-in was made from; of the files the names and sizes, for their sum would cost more than a copy."""
    summed = hashlib.sha256((below + dockerfile).encode())
    for name in sorted(inputs):
        summed.update(f"{name} {inputs[name].stat().st_size}\n".encode())
    return summed.hexdigest()


def _inputs(python: Python) -> dict[str, Path]:
    found = {f"packages/{name}": path for name, path in _package_files(python)}
    if python.with_prefix:
        found.update((f"prefix/{name}", path) for name, path in _prefix_files(python.executable))
    return found


def _package_files(python: Python) -> Iterator[tuple[str, Path]]:
    """The files of the packages: path under site-packages, and where it is."""
    listed = _ask(python.executable, LIST_FILES, *python.packages)
    for name, path in json.loads(listed).items():
        # `..` leads to scripts beside the interpreter.
        if not name.startswith("..") and _wanted("/" + name) and os.path.isfile(path):
            yield name, Path(path)


def _prefix_files(executable: str) -> Iterator[tuple[str, Path]]:
    """The interpreter, its library and its standard library with pip and setuptools; of links what they lead to."""
    prefix, version = _ask(
        executable, "import sys; print(sys.base_prefix); print('python%d.%d' % sys.version_info[:2])"
    ).split("\n")[:2]
    assert prefix not in ("/usr", "/"), f"the Python of a distribution cannot be copied: {executable}"
    yield f"bin/{version}", Path(prefix, "bin", version)
    for path in sorted(Path(prefix, "lib").glob(f"lib{version}.so.*")):
        yield f"lib/{path.name}", path
    for path in sorted(Path(prefix, "include", version).rglob("*.h")):
        yield path.relative_to(prefix).as_posix(), path
    library = Path(prefix, "lib", version)
    for folder, _, names in os.walk(library):
        for name in sorted(names):
            path = Path(folder, name)
            inside = path.relative_to(library).as_posix()
            if _wanted("/" + inside) and _standard(inside):
                yield f"lib/{version}/{inside}", path


def _standard(path: str) -> bool:
    """Whether a file under lib/pythonX.Y is the standard library's, pip's or setuptools'."""
    parts: list[str] = path.split("/")
    if parts[0] != "site-packages":
        return True
    return len(parts) > 1 and parts[1].startswith(("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel"))


def _wanted(path: str) -> bool:
    return not any(part in path for part in LEFT_OUT) and not path.endswith((".pyc", ".a"))


def _ask(executable: str, program: str, *arguments: str) -> str:
    # Isolated: PYTHONPATH and the working directory are this machine's, not the environment's.
    return subprocess.run(
        [executable, "-I", "-c", program, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
