"""The scripts that run inside a build: what pip is told, and what the checks of base and stack find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pip
import pytest

from flagbench.images.render.templates import shipped_images

FILES = shipped_images() / "files"
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
Check = Callable[..., str]


@pytest.mark.parametrize(
    ("given", "told", "not_told"),
    [
        ({}, {"PIP_EXTRA_INDEX_URL": "https://stack/", "PIP_NO_CACHE_DIR": "1"}, {"PIP_CERT", "PIP_NO_INDEX"}),
        ({"ca.crt": "x"}, dict.fromkeys(CERTIFICATES, "/mnt/ca.crt"), {"PIP_CONFIG_FILE"}),
        (
            {"pip.conf": "[global]\nindex-url = https://mirror/\n"},
            {"PIP_CONFIG_FILE": "/mnt/pip.conf", "PIP_EXTRA_INDEX_URL": "https://stack/"},
            {"PIP_CERT"},
        ),
        (
            {"pip.conf": "[global]\nextra-index-url = https://mirror/\n"},
            {"PIP_CONFIG_FILE": "/mnt/pip.conf"},
            {"PIP_EXTRA_INDEX_URL"},
        ),
        ({"wheels/x.whl": ""}, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt/wheels"}, {"PIP_EXTRA_INDEX_URL"}),
    ],
    ids=["nothing", "certificates", "an index", "an extra index", "wheels"],
)
def test_pip_is_told_of_what_was_given(
    given: dict[str, str], told: dict[str, str], not_told: set[str], tmp_path: Path
) -> None:
    """Certificates reach all that pip starts, an extra index replaces the stack's, wheels are the only source."""
    interpreter, inputs = tmp_path / "python", tmp_path / "mnt"
    interpreter.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n",
        encoding="utf-8",
    )
    interpreter.chmod(0o755)
    for name, text in given.items():
        (inputs / name).parent.mkdir(parents=True, exist_ok=True)
        (inputs / name).write_text(text, encoding="utf-8")
    stack = {"PIP_EXTRA_INDEX_URL": "https://stack/", "PIP_CONSTRAINT": "/etc/pip/constraint.txt"}
    done = subprocess.run(
        ["sh", str(FILES / "install.sh"), "pip", str(interpreter), "install", "a b", "-r", "x"],
        env={"PATH": os.environ["PATH"], "FLAGBENCH_INPUTS": str(inputs), **stack},
        capture_output=True,
        text=True,
        check=True,
    )
    arguments, environment = json.loads(done.stdout.replace(str(inputs), "/mnt"))
    assert arguments == ["-m", "pip", "install", "a b", "-r", "x"]
    assert told.items() <= environment.items()
    assert not environment.keys() & (not_told | {"PIP_CONSTRAINT"})


@pytest.mark.parametrize(
    ("loaded", "asked"), [("", ["tini", "libibverbs1"]), ("\tlibibverbs.so.1 (libc6,x86-64) => /x\n", ["tini"])]
)
def test_a_library_of_the_base_is_kept(loaded: str, asked: list[str], tmp_path: Path) -> None:
    for name, body in {
        "apt-get": 'case $2 in install) printf "%s\\n" "$@" >"$HERE/asked" ;; esac',
        "apt-cache": "",
        "rm": "",
        "ldconfig": 'cat "$HERE/loaded"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "loaded").write_text(loaded, encoding="utf-8")
    subprocess.run(
        ["sh", str(FILES / "install.sh"), "apt", "tini", "libibverbs1@libibverbs.so.1"],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HERE": str(tmp_path), "TMPDIR": str(tmp_path)},
        check=True,
    )
    words = (tmp_path / "asked").read_text(encoding="utf-8").split()
    assert words[words.index("--") + 1 :] == asked


@pytest.fixture
def base_python(tmp_path: Path) -> tuple[Path, Path]:
    """An interpreter of its own with this Python's pip, as a base has one, and the folder that pip installs into."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "base")], check=True)
    packages = tmp_path / "base" / "lib" / f"python{VERSION}" / "site-packages"
    (packages / "pip.pth").write_text(f"{Path(pip.__file__).parents[1]}\n", encoding="utf-8")
    return tmp_path / "base" / "bin" / "python", packages


def add_package(folder: Path, name: str, metadata: str, record: bool) -> None:
    """A package as something has installed it: a module, and its metadata with a list of its files or without."""
    files = {f"{name}.py": "", f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    if record:
        files[f"{metadata}/RECORD"] = f"{name}.py,,\n{metadata}/METADATA,,\n{metadata}/RECORD,,\n"
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def test_what_a_build_installs_is_uninstalled_from_a_base(base_python: tuple[Path, Path], tmp_path: Path) -> None:
    """What pip cannot uninstall stays to be overwritten, without its metadata."""
    python, packages = base_python
    add_package(packages, "listed", "listed-1.0.dist-info", record=True)
    add_package(packages, "un_listed", "Un_Listed-1.0.dist-info", record=False)
    add_package(packages, "kept", "kept-1.0.dist-info", record=False)
    (packages / "distutils_made-1.0.egg-info").write_text("Name: distutils-made\nVersion: 1.0\n", encoding="utf-8")
    add_package(packages, "compiled", "compiled-1.0.dist-info", record=True)
    step = tmp_path / "step"
    step.mkdir()
    (step / "uninstall.py").write_bytes((FILES / "uninstall.py").read_bytes())
    (step / "requirements.lock").write_text("listed==2.0 \\\n    --hash=sha256:0\nun-listed==2.0\n", encoding="utf-8")
    (step / "requirements.unlocked").write_text("Distutils.Made==2.0\n", encoding="utf-8")

    def uninstall(*wheels: str) -> set[str]:
        subprocess.run([python, "-B", step / "uninstall.py", *wheels], check=True)
        return {path.name for path in packages.iterdir()} - {"pip.pth", "__pycache__"}

    kept = {"un_listed.py", "kept.py", "kept-1.0.dist-info"}
    assert uninstall() == kept | {"compiled.py", "compiled-1.0.dist-info"}
    assert uninstall("/srv/compiled-2.0-py3-none-any.whl") == kept


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., int]:
    """Runs install.sh take or keep with a cache in a folder; its exit code."""

    def run(what: str, key: str, folder: Path, **env: str) -> int:
        given = {"PATH": os.environ["PATH"], "FLAGBENCH_WHEELS": str(tmp_path / "cache")}
        (tmp_path / "cache").mkdir(exist_ok=True)
        command = ["sh", str(FILES / "install.sh"), what, key, str(folder)]
        return subprocess.run(command, env={**given, "BASE_DIGEST": "sha256:b", **env}, check=False).returncode

    return run


def test_a_wheel_is_kept_for_the_same_base_and_key(wheel: Callable[..., int], tmp_path: Path) -> None:
    made, found = tmp_path / "made", tmp_path / "found"
    made.mkdir()
    (made / "a-1-py3-none-any.whl").write_bytes(b"compiled")
    assert wheel("take", "a-1", found) != 0, "there is none yet"
    assert wheel("keep", "a-1", made) == 0
    assert wheel("keep", "a-1", made) == 0, "another build kept the same meanwhile"
    assert wheel("take", "a-1", found) == 0
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {"a-1-py3-none-any.whl": b"compiled"}
    for key, other in (("a-2", {}), ("a-1", {"BASE_DIGEST": "sha256:c"})):
        assert wheel("take", key, tmp_path / "other", **other) != 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["sha256:b"], "nothing is left half-written"


def test_without_a_base_no_wheel_is_kept(wheel: Callable[..., int], tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "a-1-py3-none-any.whl").write_bytes(b"compiled")
    assert wheel("keep", "a-1", made, BASE_DIGEST="") == 0
    assert wheel("take", "a-1", tmp_path / "found", BASE_DIGEST="") != 0
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["2.7", sys.executable], f"is Python {VERSION}, the stack is for 2.7"),
        ([VERSION, "/no/such/python"], "has no /no/such/python"),
        ([VERSION, sys.executable], None),
        ([VERSION], None),
    ],
)
def test_a_wrong_base_is_told_before_anything_is_installed(
    arguments: list[str], said: str | None, tmp_path: Path
) -> None:
    """check_base.sh on this machine, taken for a Debian."""
    (tmp_path / "apt-get").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "apt-get").chmod(0o755)
    done = subprocess.run(
        ["sh", str(FILES / "check_base.sh"), *arguments],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if said is None else 1)
    assert (said or "") in done.stderr


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., str]:
    """Runs check_stack.py against a made-up site with torch and another package; returns what it complained of."""
    step = tmp_path / "media"
    step.mkdir()
    (step / "check_stack.py").write_bytes((FILES / "check_stack.py").read_bytes())
    site = tmp_path / "site"

    def run(*arguments: str, torch: str = "1.12.0a0+bd13bc6", body: str = "", **expectations: Any) -> str:
        stack = {"python": VERSION, "expects": {}, "from_base": [], "imports": [], **expectations}
        (step / "stack.json").write_text(json.dumps(stack), encoding="utf-8")
        for name, text in {
            "torch/__init__.py": body or "raise ImportError('libcuda.so.1: no such file')\n",
            "torch/version.py": f"__version__ = '{torch}'\ncuda = '11.6'\n",
            "flash_attn-2.5.9.dist-info/METADATA": "Name: flash-attn\nVersion: 2.5.9\n",
        }.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text, encoding="utf-8")
        command = [sys.executable, "-B", str(step / "check_stack.py"), *arguments]
        env = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == (1 if done.stderr else 0), done.stderr
        return done.stderr

    return run


def test_the_bases_torch_is_read_without_its_driver(check: Check, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    expectations = {
        "expects": {"torch": "1.12.0a0+bd13bc6", "cuda": "11.6"},
        "from_base": ["torch", "flash-attn", "x"],
    }
    assert check("before", str(kept), **expectations) == ""
    assert json.loads(kept.read_text(encoding="utf-8")) == {
        "torch": "1.12.0a0+bd13bc6",
        "flash-attn": "2.5.9",
        "x": None,
    }
    assert check("after", str(kept), **expectations) == ""


def test_a_torch_that_was_replaced_is_found(check: Check, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept.json")
    assert check("before", kept, from_base=["torch"]) == ""
    said = check("after", kept, torch="2.4.1", from_base=["torch"])
    assert "torch of the base was 1.12.0a0+bd13bc6 and is 2.4.1 now" in said


@pytest.mark.parametrize(
    ("expected", "found", "fits"),
    [
        ("2.13", "2.13.0+cpu", True),
        ("2.13.", "2.13.0", True),
        ("1.12.0a0+bd13bc6", "1.12.0a0+bd13bc6", True),
        ("2.1", "2.13.0", False),
        ("2.13.0", "2.13", False),
    ],
)
def test_a_version_fits_where_a_new_part_begins(expected: str, found: str, fits: bool, check: Check) -> None:
    assert (check("after", torch=found, expects={"torch": expected}) == "") == fits


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expects": {"no-such-package": "0.16"}}, "no-such-package is not installed, the stack expects 0.16\n"),
        ({"python": "2.7"}, f"Python is {VERSION}, the stack expects 2.7\n"),
        ({"imports": ["torch"]}, "torch does not import: libcuda.so.1: no such file\n"),
        ({"imports": ["torch"], "body": "x = 1\n"}, ""),
        ({"libraries": ["libc.so.6", "libno.so.1"]}, "libno.so.1 is not installed: NCCL would use sockets\n"),
    ],
)
def test_what_differs_is_told(given: dict[str, Any], said: str, check: Check) -> None:
    assert check("after", **given) == (said and f"flagbench: {said}")


@pytest.mark.parametrize("script", ["", "exit 0", "echo 'fatal error: Python.h: No such file' >&2; exit 1"])
def test_a_python_that_nothing_can_be_compiled_against_is_found(
    script: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, with both, and without the headers; the compilers are this test's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("gcc", "g++") if script else ():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    lines = check("after", compiles=True).splitlines()
    assert len(lines) == (0 if script == "exit 0" else 2)
    assert all("compiled against this Python" in line for line in lines)
