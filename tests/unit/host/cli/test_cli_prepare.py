"""`flagbench prepare`: what it hands to the image side, natively and in a container, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.runs.launchers import native
from flagbench.runs.launchers.docker_command import Host
from flagbench.runs.launchers.folders import Folder
from flagbench.runs.launchers.prepare import plan_prepare_container
from flagbench.runs.prepare_request import PrepareOptions, PrepareRequest
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench

HOST = Host(1234, 100, (7,), lambda path: False, lambda name: None)


def asked(out: Path, **options: Any) -> PrepareRequest:
    case, stack = resolve_image("distilbert:cpu", load_catalog())
    return PrepareRequest(case, stack, PrepareOptions(str(out), **options))


# Natively


@pytest.fixture
def image_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `python -m flagbench_cases` print its arguments and end as the text `end` says."""
    for name in native.NEEDED:
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("")
    code = "import os, sys; print(os.environ['FLAGBENCH_STACK'], *sys.argv[1:]); exec(open(os.environ['END']).read())"
    (tmp_path / "site" / "flagbench_cases" / "__main__.py").write_text(code)
    (tmp_path / "end").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("END", str(tmp_path / "end"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "end"


@pytest.mark.parametrize(
    ("typed", "handed_on"),
    [
        (
            "distilbert:a100 --data a --weights -w --vocabulary v -o out --force --json",
            "a100-cuda11.6 prepare distilbert --out=out --data=a --weights=-w --vocabulary=v --force --json\n",
        ),
        # Any stack can prepare a case; the processor's comes first.
        ("distilbert -o out --check", "cpu prepare distilbert --out=out --check\n"),
    ],
)
@pytest.mark.usefixtures("image_side")
def test_what_was_asked_for_is_handed_on(flagbench: Flagbench, typed: str, handed_on: str) -> None:
    assert flagbench(f"prepare {typed}")[:2] == (0, handed_on)


@pytest.mark.usefixtures("image_side")
def test_a_check_needs_no_framework(flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: None if name == "torch" else object())
    assert flagbench("prepare distilbert -o out --check").code == 0


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("sys.exit(14)", 14), ("sys.exit(99)", 4), ("os.kill(os.getpid(), 9)", 4)]
)
def test_the_image_sides_code_is_the_commands(flagbench: Flagbench, image_side: Path, end: str, code: int) -> None:
    image_side.write_text(end)
    assert flagbench("prepare distilbert -o out").code == code


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("distilbrt -o x", "'distilbrt'"),
        ("distilbert:nope -o x", "'nope'"),
        ("distilbert", "--out"),
        ("distilbert -o x --via native --image y", "--image"),
        ("distilbert -o x", "torch"),
    ],
)
def test_invalid_arguments_are_refused(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, words: str, named: str
) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: None if name == "torch" else object())
    ended = flagbench(f"prepare {words}")
    assert (ended.code, named in ended.err) == (ExitCode.USAGE, True)


# In a container


def refused_plan(tmp_path: Path, **options: Any) -> FlagbenchError:
    """The error of a container that cannot be planned."""
    with pytest.raises(FlagbenchError) as caught:
        plan_prepare_container(asked(**{"out": tmp_path / "out", **options}), None, HOST)
    assert not (tmp_path / "out").exists()
    return caught.value


def test_sources_are_read_only_and_there_is_no_network(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("{}")
    (tmp_path / "weights").mkdir()
    request = asked(
        tmp_path / "out", data=str(tmp_path / "text.jsonl"), weights=str(tmp_path / "weights"), as_json=True
    )
    made = plan_prepare_container(request, None, HOST)
    assert made.image == "flagbench/distilbert:cpu"
    assert made.arguments == (
        "prepare",
        *("--out=/out", "--data=/sources/data/text.jsonl", "--weights=/sources/weights"),
        *("--json", f"--shown-as={tmp_path / 'out'}"),
    )
    assert (made.user, made.groups, made.network, made.environment) == ("1234:100", ("7",), "none", {})
    assert (made.grants.gpus, made.grants.devices, made.grants.capabilities) == (None, (), ())
    assert made.folders == (
        Folder(str(tmp_path / "out"), "/out", writable=True),
        Folder(str(tmp_path / "text.jsonl"), "/sources/data/text.jsonl", writable=False),
        Folder(str(tmp_path / "weights"), "/sources/weights", writable=False),
    )
    assert not (tmp_path / "out").exists(), "made only once there is an image to start"


def test_a_link_that_a_container_cannot_follow_is_refused(tmp_path: Path) -> None:
    """A Hugging Face cache keeps its files elsewhere; and a container has the folder itself at another place."""
    source, given = tmp_path / "source", tmp_path / "given"
    (source / "deep").mkdir(parents=True)
    (source / "file").write_text("")
    (tmp_path / "blob").write_text("")
    (source / "deep" / "up").symlink_to("../file")
    (source / "around").symlink_to("around")
    given.symlink_to("source")
    made = plan_prepare_container(asked(tmp_path / "out", weights=str(given)), None, HOST)
    assert made.folders[1].source == str(source)
    link = source / "deep" / "link"
    for target in ("../../blob", str(source / "file"), "../../source/file", "../deep/../../source/file", str(source)):
        link.symlink_to(target)
        error = refused_plan(tmp_path, weights=str(given))
        assert (error.code, "'link'" in error.message) == (ExitCode.DATA, True)
        link.unlink()


def test_a_source_file_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0123").write_text("")
    (tmp_path / "tokenizer.model").symlink_to("blobs/0123")
    made = plan_prepare_container(
        asked(tmp_path / "out", vocabulary=str(tmp_path / "blobs" / ".." / "tokenizer.model")), None, HOST
    )
    assert made.folders[1].source == str(tmp_path / "blobs" / "0123")
    assert made.folders[1].target == "/sources/vocabulary/tokenizer.model"
    (tmp_path / "again").symlink_to("again")
    assert refused_plan(tmp_path, data=str(tmp_path / "again")).code is ExitCode.DATA
    os.symlink("blobs/0123", os.fsencode(tmp_path / "x") + b"\xff")
    assert refused_plan(tmp_path, data=os.fsdecode(os.fsencode(tmp_path / "x") + b"\xff")).code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"data": "nowhere"}, 3),
        ({"data": "s3://x"}, 2),
        ({"data": ""}, 2),
        ({"data": "a\0b"}, 2),
        ({"out": os.fsdecode(b"/tmp/\xff")}, 2),
    ],
)
def test_what_cannot_be_mounted_is_refused(tmp_path: Path, options: dict[str, str], code: int) -> None:
    error = refused_plan(tmp_path, **options)
    assert error.code == code
    assert all(f"--{name}" in error.message for name in options)
