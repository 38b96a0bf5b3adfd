"""Generates the data, vocabulary and weights of a tiny preset: entrypoints/flagbench_cases/cases/*/tiny.

python tools/tiny_sets.py CASE --check         # exits with 1 if the committed files are not those of this program
python tools/tiny_sets.py CASE --out FOLDER    # generates them in a new folder, in two minutes at most
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.tiny import aquila_33b, distilbert, glm, llama2_7b_lora, llama2_70b

GENERATORS = {
    "aquila-33b": aquila_33b,
    "distilbert": distilbert,
    "glm": glm,
    "llama2-70b": llama2_70b,
    "llama2-7b-lora": llama2_7b_lora,
}
"""The module of each case."""


def main() -> int:
    """Check or generate the set of a case; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools/tiny_sets.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", choices=GENERATORS)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="name the committed files that differ")
    action.add_argument("--out", type=Path, metavar="FOLDER", help="a new folder for the files")
    options = parser.parse_args()
    generator = GENERATORS[options.case]
    if options.check:
        differences = generator.check()
        if differences:
            print(f"changed: {', '.join(differences)}")
            return 1
        print("unchanged")
        return 0
    if options.out.exists():
        parser.error(f"{options.out} exists")
    options.out.mkdir(parents=True)
    generator.make(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
