"""A rendered image as a tar and as a folder: deterministic, complete, and nothing overwritten by mistake."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.errors import FlagbenchError
from flagbench.render.context import GENERATED, context_tar, write_directory, write_tree
from flagbench.render.model import Rendered, rendered

DOCKERFILE = f"{GENERATED} from a test\nFROM scratch\n"
# A path of more than a hundred characters needs an extension of the first tar format.
LONG = "/".join(["a" * 60] * 4)
IMAGE = rendered("stack/x", DOCKERFILE, {"steps/b/run.sh": b"1", "steps/a": b"22", "inputs/README": b"3", LONG: b"4"})


def as_tar(image: Rendered, inputs: dict[str, Path | bytes]) -> bytes:
    """The whole context."""
    return b"".join(context_tar(image, inputs))


def read(tar: bytes) -> dict[str, bytes]:
    """Its files."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        files = {m.name: opened.extractfile(m) for m in opened if m.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_tar_holds_every_file_and_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"w" * 1300)
    inputs: dict[str, Path | bytes] = {"wheels/x.whl": tmp_path / "x.whl", "pip.conf": b"[global]\n"}
    files = read(as_tar(IMAGE, inputs))
    assert files == {**IMAGE.files, "inputs/wheels/x.whl": b"w" * 1300, "inputs/pip.conf": b"[global]\n"}


def test_the_tar_says_nothing_of_who_made_it_or_when(tmp_path: Path) -> None:
    source = tmp_path / "ca.crt"
    source.write_bytes(b"certificate")
    tars = []
    for mtime, mode in ((1, 0o600), (1e9, 0o777)):
        os.utime(source, (mtime, mtime))
        source.chmod(mode)
        tars.append(as_tar(IMAGE, {"ca.crt": source}))
    assert tars[0] == tars[1]
    assert b"PaxHeader" not in tars[0]
    with tarfile.open(fileobj=io.BytesIO(tars[0])) as opened:
        members = opened.getmembers()
    assert [m.name for m in members if m.isfile()] == sorted(m.name for m in members if m.isfile())
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert {m.mode for m in members if m.isdir()} == {0o755}
    assert len({m.name for m in members}) == len(members)
    before = {m.name: index for index, m in enumerate(members)}
    assert all(before[os.path.dirname(m.name)] < before[m.name] for m in members if "/" in m.name)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True), st.binary(max_size=1500)))
def test_any_content_comes_back(files: dict[str, bytes]) -> None:
    folders = {path.partition("/")[0] for path in files if "/" in path}
    plain = {path: content for path, content in files.items() if path not in folders}
    image = rendered("stack/x", DOCKERFILE, plain)
    assert read(as_tar(image, {})) == image.files


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a//b", "", "./a", "README", "a\nb"])
def test_an_input_stays_in_its_folder(name: str) -> None:
    with pytest.raises(FlagbenchError, match="cannot be called"):
        as_tar(IMAGE, {name: b""})


def test_an_input_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlagbenchError, match=r"gone\.crt"):
        as_tar(IMAGE, {"ca.crt": tmp_path / "gone.crt"})


def test_a_folder_is_written_and_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_directory(IMAGE, folder)
    (folder / "steps" / "left-over").write_text("", encoding="utf-8")
    write_directory(IMAGE, folder)
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == IMAGE.files
    assert [p.name for p in tmp_path.iterdir()] == ["out"], "nothing temporary is left"


def test_a_tree_is_known_to_be_ours(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_tree({"cpu/stack": IMAGE, "cpu/distilbert": IMAGE}, folder)
    write_tree({"cpu/stack": IMAGE}, folder)
    assert sorted(p.name for p in (folder / "cpu").iterdir()) == ["stack"]


@pytest.mark.parametrize("foreign", ["notes.txt", "Dockerfile", "cpu/notes.txt"])
def test_what_others_wrote_is_left_alone(foreign: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / foreign
    path.parent.mkdir(parents=True)
    path.write_text("FROM mine\n", encoding="utf-8")
    with pytest.raises(FlagbenchError, match="did not write"):
        write_directory(IMAGE, tmp_path / "out")
    assert path.read_text(encoding="utf-8") == "FROM mine\n"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x", encoding="utf-8")
    with pytest.raises(FlagbenchError):
        write_directory(IMAGE, tmp_path / "out")


def test_the_digest_knows_names_contents_and_modes() -> None:
    images = [
        rendered("stack/x", DOCKERFILE, {"a": b"bc"}),
        rendered("stack/x", DOCKERFILE, {"ab": b"c"}),
        rendered("stack/x", DOCKERFILE, {"a": b"b"}),
        Rendered("stack/x", DOCKERFILE, {"Dockerfile": DOCKERFILE.encode(), "a": b"b"}, frozenset({"a"})),
    ]
    assert len({image.digest for image in images}) == len(images)
    assert images[0].digest == rendered("stack/y", DOCKERFILE, {"a": b"bc"}).digest, "a name is no content"
