"""The index of a prepared folder, `prepared.json`: its case, kind and format, and the size and sha256 of every file.

It may come from anywhere, so it is checked before anything in it is used.
"""

import hashlib
import json
import re
from typing import Any, Dict, Mapping, Optional, Sequence

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import KINDS, SCHEMA, is_plain

MAX_BYTES = 64 * 2**20
_SHA256 = re.compile("[0-9a-f]{64}")


def parse(content: bytes, path: str, case: str, kind: str) -> Dict[str, Any]:
    """The index in `content`; `path` is where it is from, `case` and `kind` are for the remedy. Raises DataError."""
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("it is too large")
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error, case, kind) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise DataError("%s does not have the schema %s" % (path, SCHEMA), prepare_again(case, kind))
    wrong = _error(found)
    if wrong:
        raise DataError("%s is damaged: %s" % (path, wrong), prepare_again(case, kind))
    return found


def check_use(
    index: Mapping[str, Any], folder: str, case: str, kind: str, formats: Optional[Sequence[str]] = None
) -> None:
    """Raise DataError if a folder is of another case or kind, or in none of the formats (None accepts any)."""
    for key, asked in (("case", case), ("kind", kind)):
        if index[key] != asked:
            raise DataError(
                "%s was prepared as the %s %s, not %s" % (folder, key, _quoted(index[key]), asked),
                "use a folder that was prepared for it, or prepare one",
            )
    if formats is not None and index["format"] not in formats:
        raise DataError(
            "%s has the format %s; this flagbench reads %s"
            % (folder, _quoted(index["format"]), " and ".join(formats)),
            prepare_again(case, kind),
        )


def digest_of(files: Mapping[str, Mapping[str, Any]]) -> str:
    """`sha256:` and the hash of all names and checksums; equal for folders with equal contents."""
    lines = ["%s  %s\n" % (files[name]["sha256"], name) for name in sorted(files)]
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def total_bytes(index: Mapping[str, Any]) -> int:
    """The size of all files together, bytes."""
    return sum(facts["bytes"] for facts in index["files"].values())


def unreadable(path: str, error: Exception, case: str, kind: str) -> DataError:
    """The error for an index that cannot be read."""
    return DataError("%s cannot be read (%s)" % (path, str(error).split("\n")[0]), prepare_again(case, kind))


def prepare_again(case: str, kind: str) -> str:
    """The remedy for a damaged folder."""
    return "prepare it again: flagbench prepare %s --%s SOURCE -o OUT --force" % (case, kind)


def prepare_first(case: str, kind: str) -> str:
    """The remedy for a missing folder."""
    return "prepare one first: flagbench prepare %s --%s SOURCE -o OUT, then use OUT" % (case, kind)


def _quoted(value: Any) -> str:
    """A value from a file, quoted and shortened for a message."""
    return repr(value)[:80]


def _error(content: Dict[str, Any]) -> Optional[str]:
    """What is wrong with the structure of the index, or None. Names must be plain file names."""
    for key, kind in (("case", str), ("kind", str), ("format", str), ("facts", dict), ("files", dict)):
        if not isinstance(content.get(key), kind):
            return "%s is missing or has the wrong type" % key
    if not isinstance(content.setdefault("sources", []), list):
        return "sources is not a list"
    if content["kind"] not in KINDS:
        return "its kind is neither data nor weights"
    if not content["files"]:
        return "it lists no files"
    for name, facts in content["files"].items():
        if not is_plain(name) or not name.isprintable():
            return "%s is not a plain file name" % _quoted(name)
        size, sha256 = (facts.get("bytes"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return "%s has no size" % _quoted(name)
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            return "%s has no checksum" % _quoted(name)
    return None
