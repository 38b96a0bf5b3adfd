"""Small Python packages written by hand, and an index of them in a folder."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from flagbench.images.lockfile import LockEntry


def make_wheel(
    name: str, version: str, files: Mapping[str, str], requires: Iterable[str] = (), tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    """File name and content of a wheel with these files, by path; the same bytes every time."""
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    members = {
        **files,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{stem}.dist-info/RECORD": "",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{stem}-{tag}.whl", content.getvalue()


def make_source(name: str, version: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    """File name and content of a source distribution with these files, by path."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", content.getvalue()


def lock_entry(name: str, version: str, *hashes: str) -> LockEntry:
    """A package of a lock, with files of these hashes."""
    file = '    {{ path = "{0}.whl", hashes = {{ sha256 = "{0}" }} }},\n'
    files = "".join(file.format(digest.removeprefix("sha256:")) for digest in hashes)
    table = f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [\n{files}]'
    return LockEntry(name, version, tuple(sorted(hashes)), table)


class Index:
    """A package index in a new folder, as PEP 503 lays it out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def url(self) -> str:
        """As pip and uv take it."""
        return self.folder.as_uri()

    def wheel(self, name: str, version: str, requires: Iterable[str] = (), tag: str = "py3-none-any") -> str:
        """Publish a wheel with an empty module; returns its hash as a lock writes it."""
        return self._add(name, *make_wheel(name, version, {f"{name.replace('-', '_')}.py": ""}, requires, tag))

    def source(self, name: str, version: str, setup: str) -> str:
        """Publish a source distribution with this setup.py; returns its hash as a lock writes it."""
        return self._add(name, *make_source(name, version, {"setup.py": setup}))

    def _add(self, name: str, file: str, content: bytes) -> str:
        page = self.folder / name
        page.mkdir(exist_ok=True)
        (page / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        with (page / "index.html").open("a") as html:
            html.write(f'<a href="{file}#sha256={digest}">{file}</a>\n')
        return f"sha256:{digest}"
