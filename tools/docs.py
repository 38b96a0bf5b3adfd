"""Generates manifests/schema and the generated parts of docs/: tables and pictures.

python tools/docs.py            # writes the files that are out of date
python tools/docs.py --check    # writes nothing; exits with 2 if a file is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flagbench.errors import FlagbenchError
from flagbench.manifests.compile import find_stale, write_stale
from flagbench.manifests.load import load_catalog
from flagbench_core.exit_codes import ExitCode
from tools.generated.files import generated_files

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write or check the files of the checkout that this file is in; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools/docs.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 2 if a file is out of date")
    options = parser.parse_args()
    try:
        files = generated_files(load_catalog(ROOT / "manifests"), ROOT)
    except FlagbenchError as error:
        print(f"error: {error}\nfix: {error.remedy}", file=sys.stderr)
        return int(error.code)
    wanted = {path.relative_to(ROOT).as_posix(): text for path, text in files.items()}
    stale = find_stale(ROOT, wanted, ("manifests/schema/*.json", "docs/reference/*.md"))
    if not stale:
        print(f"up to date: {ROOT}")
        return 0
    if options.check:
        print(f"error: out of date: {', '.join(stale)}\nfix: run `make compile`", file=sys.stderr)
        return int(ExitCode.USAGE)
    for name in write_stale(ROOT, stale):
        print(f"wrote or removed {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
