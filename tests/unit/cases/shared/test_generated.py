"""The tiny sets that cases ship are what their generators write, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from flagbench_cases.cases.distilbert.tiny import generate as distilbert
from flagbench_cases.cases.glm.tiny import generate as glm
from flagbench_cases.shared import generated
from flagbench_cases.shared.errors import DataError
from flagbench_core.exit_codes import ExitCode
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

FILES = {
    distilbert: lambda: distilbert.files(list(distilbert.generate())),
    glm: glm.files,
}


@pytest.mark.parametrize("generator", FILES, ids=["distilbert", "glm"])
def test_the_shipped_files_are_the_output(tmp_path: Path, generator: ModuleType) -> None:
    assert generator.main(["--check"]) == ExitCode.OK
    assert generator.main(["--out", str(tmp_path / "new")]) == ExitCode.OK
    shipped, files = Path(generator.__file__).parent, FILES[generator]()
    for name in files:
        assert (tmp_path / "new" / name).read_bytes() == (shipped / name).read_bytes()
    shutil.copytree(str(tmp_path / "new"), str(tmp_path / "changed"))
    changed = sorted(files)[0]
    (tmp_path / "changed" / changed).write_bytes(b"{}\n")
    with refuses(DataError, ": " + changed):
        generated.check(files, tmp_path / "changed")
