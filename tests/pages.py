"""A page of docs/ followed literally: its files written and its commands run in a copy of what a checkout has.

In a page, a line that is a path and a colon stands before the text of a file, a fence `sh` holds commands, and an
item of a list that begins with a path (which may have `*`) names what the commands generate.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLES = {"docs/reference/README.md", "docs/run-a-case.md", "docs/what-was-tested.md"}
"""Pages with tables made from every manifest."""
FORMULAS = "entrypoints/flagbench_core/flops.py"
"""To which a case may add a formula."""
COPIED = (
    "manifests",
    "images",
    "entrypoints",
    "tools",
    "docs/measured",
    "docs/reference",
    "docs/run-a-case.md",
    "docs/verdict",
    "docs/what-was-tested.md",
)
BLOCK = re.compile(r"^(?:`(?P<path>[^`\n]+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"^- `([^`\n]+)`: ", re.MULTILINE)


class Page(NamedTuple):
    """What a page says to do."""

    steps: list[tuple[str | None, str]]
    """In order: the path of a file and its text, or None and commands for a shell."""
    generated: list[str]
    """Patterns of the paths that the commands write."""

    @property
    def files(self) -> set[str]:
        """The files that a person writes."""
        return {path for path, _ in self.steps if path is not None}

    def explains(self, path: str) -> bool:
        """Whether the page names a path, or a pattern of it."""
        return path in self.files or any(fnmatchcase(path, pattern) for pattern in self.generated)


def read_page(name: str) -> Page:
    """The page docs/NAME."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    steps = [
        (match["path"], match["text"])
        for match in BLOCK.finditer(text)
        if match["path"] is not None or match["kind"] == "sh"
    ]
    return Page(steps, GENERATED.findall(text))


class Changes(NamedTuple):
    """How two states of a checkout differ, as paths."""

    added: set[str]
    changed: set[str]
    removed: set[str]


class Checkout:
    """A copy of what flagbench finds beside its manifests; commands that run there read and write nothing else."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.root = folder / "checkout"
        for name in COPIED:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.root / name)
        programs = folder / "bin"
        programs.mkdir()
        for name, words in (("python", ""), ("flagbench", " -m flagbench")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
            (programs / name).chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("FLAGBENCH_", "PIP_", "UV_"))}
        self.environment = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'builder'}{os.pathsep}{self.root / 'entrypoints'}",
            "FLAGBENCH_MANIFESTS": str(self.root / "manifests"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **environment,
        }

    def run(self, commands: str) -> str:
        """Run commands as a shell does that stops at the first failure; returns what they print on stdout."""
        ended = subprocess.run(
            ["sh", "-eu", "-c", commands],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, f"{commands}\nended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def follow(self, page: Page) -> Iterator[tuple[str, str]]:
        """Do what a page says; yields each fence of commands with what it printed."""
        for path, text in page.steps:
            if path is None:
                yield text, self.run(text)
            else:
                target = self.root / path
                assert not target.exists(), f"{path} is there already: the page would change it"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")

    def state(self) -> dict[str, str]:
        """The digest of every file, by its path."""
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.root.rglob("*")
            if path.is_file() and path.parent.name != "__pycache__"
        }

    def changes(self, before: Mapping[str, str]) -> Changes:
        """What differs from an earlier state."""
        now = self.state()
        return Changes(
            added=now.keys() - before.keys(),
            changed={path for path in now.keys() & before.keys() if now[path] != before[path]},
            removed=before.keys() - now.keys(),
        )


def assert_page_tells_all(page: Page, changes: Changes) -> None:
    """Everything that came or changed is named by the page, nothing named stayed away, and nothing went."""
    touched = changes.added | changes.changed
    surprises = sorted(path for path in touched if not page.explains(path))
    assert not surprises, f"not named by the page: {surprises}"
    unwritten = sorted(page.files - changes.added)
    assert not unwritten, f"named by the page, and not new: {unwritten}"
    unmade = [pattern for pattern in page.generated if not any(fnmatchcase(path, pattern) for path in touched)]
    assert not unmade, f"said to be generated, and nothing made it: {unmade}"
    assert changes.changed <= {*TABLES, FORMULAS}, f"changed: {sorted(changes.changed)}"
    assert not changes.removed, f"removed: {sorted(changes.removed)}"
