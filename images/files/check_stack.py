"""What a stack's image holds against what its manifest expects, checked while the image is built.

    check_stack.py before KEPT     on the base, before anything is installed: notes the versions of what the base
                                   brings in the file KEPT, and checks those of them that the manifest expects
    check_stack.py after [KEPT]    when everything is installed: checks every expectation, and that what the base
                                   brought is as it was

Expectations are read from stack.json beside this file: {"python": "3.8", "expects": {"torch": "1.12.0a0"},
"from_base": ["torch"], "imports": ["torch"], "compiles": true, "libraries": ["libibverbs.so.1"]}. Ends with 1 and one
line per difference. Runs on Python 3.8 and later with the standard library alone; torch is imported only where this
build installed it, because a vendor's may not import without its driver.
"""

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import sysconfig
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))


def torch_facts():
    """torch's version and the toolkit it was made with, read from its version.py without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    path = os.path.join(os.path.dirname(spec.origin), "version.py")
    facts = runpy.run_path(path)
    return {"torch": facts.get("__version__"), "cuda": facts.get("cuda")}


def versions(names):
    """The version of each package of `names`, None where it is not there; `cuda` is the toolkit of torch."""
    torch = torch_facts()
    return {name: torch.get(name) if name in ("torch", "cuda") else installed(name) for name in names}


def installed(name):
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fits(found, expected):
    """Whether a version is the expected one: the same, or the same up to where a new part begins."""
    if found is None:
        return False
    if found == expected:
        return True
    return found.startswith(expected) and (expected[-1:] in ".+" or found[len(expected)] in ".+")


def against_manifest(stack, names):
    """A line for each of `names` whose version is not what the manifest expects."""
    found = versions(names)
    return [
        "%s is %s, the stack expects %s" % (name, found[name] or "not installed", stack["expects"][name])
        for name in names
        if not fits(found[name], stack["expects"][name])
    ]


def python_differs(stack):
    """A line where this is not the Python of the stack."""
    found = "%d.%d" % sys.version_info[:2]
    return [] if found == stack["python"] else ["Python is %s, the stack expects %s" % (found, stack["python"])]


def before(stack, kept):
    """Differences of the base; notes what it brings."""
    brought = versions(stack["from_base"])
    with open(kept, "w", encoding="utf-8") as file:
        json.dump(brought, file, indent=1, sort_keys=True)
        file.write("\n")
    known = set(brought) | ({"cuda"} if "torch" in brought else set())
    expected = [name for name in sorted(stack["expects"]) if name in known]
    return python_differs(stack) + against_manifest(stack, expected)


def after(stack, kept):
    """Differences of the finished image."""
    lines = python_differs(stack) + against_manifest(stack, sorted(stack["expects"]))
    if kept:
        with open(kept, encoding="utf-8") as file:
            brought = json.load(file)
        now = versions(sorted(brought))
        lines += [
            "%s of the base was %s and is %s now: a package of the lock replaced it" % (name, was, now[name])
            for name, was in sorted(brought.items())
            if was != now[name]
        ]
    lines += [line for line in (import_error(name) for name in stack["imports"]) if line]
    lines += missing_libraries(stack.get("libraries", []))
    return lines + (compiler_errors() if stack.get("compiles") else [])


def missing_libraries(names):
    """A line for each shared library that the loader does not find, by `ldconfig -p`."""
    if not names:
        return []
    known = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace").split()
    return ["%s is not installed: NCCL would use sockets" % name for name in names if name not in known]


def import_error(name):
    """A line where a package that this build installed cannot be imported: its lock lacks something it needs."""
    try:
        importlib.import_module(name)
    except (ImportError, OSError) as error:
        return "%s does not import: %s" % (name, " ".join(str(error).split()))
    return None


def compiler_errors():
    """A line for each language that no module for this Python can be compiled in, as Triton and torch do in a run."""
    folder = sysconfig.get_paths()["include"]
    lines = []
    for compiler, language in (("gcc", "c"), ("g++", "c++")):
        command = [compiler, "-fsyntax-only", "-x", language, "-I", folder, "-"]
        try:
            done = subprocess.run(command, input=b"#include <Python.h>\n", stderr=subprocess.PIPE)
            said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0] if done.returncode else None
        except OSError as error:
            said = str(error)
        if said is not None:
            lines.append("nothing can be compiled against this Python: %s" % said)
    return lines


def main(arguments):
    """Check; returns the exit code."""
    with open(os.path.join(HERE, "stack.json"), encoding="utf-8") as file:
        stack = json.load(file)
    check = {"before": before, "after": after}[arguments[0]]
    lines = check(stack, arguments[1] if len(arguments) > 1 else None)
    for line in lines:
        print("flagbench: " + line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
