"""Where templates, locks and the image side's code are: beside the catalog's manifests, else flagbench's own."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench_core.exit_codes import ExitCode


def images_root(catalog: Catalog) -> Path:
    """The images/ folder with templates, files and locks: the one beside the catalog's manifests, if there is one."""
    beside = catalog.root.parent / "images"
    return beside if beside.is_dir() else shipped_images()


@lru_cache(maxsize=1)
def shipped_images() -> Path:
    """The images/ folder of this flagbench: beside the checkout, else inside the wheel.

    Raises FlagbenchError where neither is there, which is a broken installation.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package.parents[1] / "images", package / "_data" / "images"):
        if (folder / "templates").is_dir():
            return folder
    raise _broken(f"no image templates (looked around {package})")


def case_package(catalog: Catalog) -> Path:
    """The image side's package, flagbench_cases: beside the catalog's manifests, else as it is installed.

    Raises FlagbenchError where there is none, which is a broken installation.
    """
    beside = catalog.root.parent / "entrypoints" / "flagbench_cases"
    if beside.is_dir():
        return beside
    # Found, not imported: the two packages never import each other.
    spec = find_spec("flagbench_cases")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    shipped = Path(__file__).resolve().parents[4] / "entrypoints" / "flagbench_cases"
    if shipped.is_dir():
        return shipped
    raise _broken("no flagbench_cases, the code that images carry")


def core_package(package: Path) -> Path:
    """flagbench_core: beside the image side's package, else the one that this process uses."""
    beside = package.parent / "flagbench_core"
    return beside if beside.is_dir() else Path(flagbench_core.__file__).parent


def _broken(what: str) -> FlagbenchError:
    return FlagbenchError(
        f"this installation of flagbench has {what}",
        remedy="install flagbench again, from a wheel or an editable checkout",
        code=ExitCode.BUG,
    )
