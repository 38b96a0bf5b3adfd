"""An image whose bytes do not depend on when its steps ran: no later time than it should have in layers and config.

Two builds with one SOURCE_DATE_EPOCH write the same files, but an engine gives what a step made the time it was made
at. BuildKit could take that out of the layers itself (`rewrite-timestamp`), though not of an image that it leaves in
the engine: with the containerd image store it refuses ("conflicts with unpack", moby/buildkit#4230), with the classic
one it has no effect (moby/buildkit#4986). So an image is normalised when it is pushed, and loaded back.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from flagbench.engines.reproducible import DAMAGED, normalised
from flagbench.errors import ExitCode, FlagbenchError

# As engines write them: RFC 3339 with up to nine digits of a second, in UTC.
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?Z")


def normalise_layer(source: Path, target: Path, epoch: int) -> str | None:
    """Write a layer's tar without times that are later than the epoch, in seconds since 1970.

    Returns its digest, `sha256:<64 hex>`; None where no time was later: then the layer stays as it is, so that
    normalising twice changes nothing. Raises FlagbenchError (data) where it is no tar.
    """
    digest, changed = hashlib.sha256(), False
    try:
        with tarfile.open(source, mode="r|", bufsize=2**20) as tar, target.open("wb", buffering=2**20) as file:
            for piece in normalised(tar, epoch):
                changed = changed or piece.later
                digest.update(piece.content)
                file.write(piece.content)
    except DAMAGED as error:
        raise FlagbenchError(
            f"a layer of the image cannot be read: {error}",
            remedy="build the image again with `flagbench build --no-cache`",
            code=ExitCode.DATA,
        ) from None
    return f"sha256:{digest.hexdigest()}" if changed else None


def normalise_config(config: bytes, diff_ids: Mapping[str, str], created: str | None) -> bytes:
    """The configuration of an image with other layers, and with no time later than `created`.

    Args:
        diff_ids: of every layer, to what it became.
        created: when the image counts as made, `YYYY-MM-DDTHH:MM:SSZ`; None: times are left as they are.

    Returns the same bytes where nothing changes. Raises FlagbenchError (data) where it is no configuration.
    """
    plain = parse_config(config)
    before = json.dumps(plain)
    plain["rootfs"]["diff_ids"] = [diff_ids[each] for each in plain["rootfs"]["diff_ids"]]
    if created is not None and _TIME.fullmatch(created):
        plain["created"] = created
        for step in plain.get("history") or ():
            if _later(step.get("created"), created):
                step["created"] = created
    if json.dumps(plain) == before:
        return config
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()


def parse_config(config: bytes) -> dict[str, Any]:
    """The configuration of an image. Raises FlagbenchError (data) if it is not one."""
    try:
        plain = json.loads(config)
        layers: Sequence[Any] = plain["rootfs"]["diff_ids"]
        history = plain.get("history") or []
        if not all(isinstance(each, str) for each in layers) or not all(isinstance(step, dict) for step in history):
            raise TypeError("of other types than an engine writes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FlagbenchError(
            f"the configuration of an image cannot be read: {error}",
            remedy="build the image again, or pull its base again",
            code=ExitCode.DATA,
        ) from None
    return dict(plain)


def _later(time: object, limit: str) -> bool:
    return isinstance(time, str) and _seconds(time) > _seconds(limit)


def _seconds(time: str) -> float:
    """Seconds since 1970; infinite for a time in another form, which is replaced then."""
    try:
        whole, _, fraction = time.removesuffix("Z").partition(".")
        made = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return made.timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return float("inf")
