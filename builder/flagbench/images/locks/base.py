"""Asks a registry, with the engine's client and its login, which manifest a base's tag names now."""

from __future__ import annotations

import json
import os
import subprocess

from flagbench.image_reference import parse_reference
from flagbench_core.redaction import redact

_SECONDS = 120


class BaseUnknown(Exception):
    """Why the digest of a base could not be found out."""


def find_digest(image: str, platform: str) -> str:
    """`sha256:<64 hex>` of the manifest that a tag names for a platform such as linux/amd64. Raises BaseUnknown."""
    command = [os.environ.get("FLAGBENCH_DOCKER") or "docker", "manifest", "inspect", "--verbose"]
    if parse_reference(image).host.partition(":")[0] in ("localhost", "127.0.0.1"):
        command.append("--insecure")  # without TLS, as an engine pulls from its own machine
    try:
        ended = subprocess.run([*command, image], capture_output=True, text=True, timeout=_SECONDS, check=True)
        answer = json.loads(ended.stdout)
        # A list for a tag with several platforms. The digest of the list itself is not told.
        descriptors = [each["Descriptor"] for each in (answer if isinstance(answer, list) else [answer])]
        offered = {"{os}/{architecture}".format(**each["platform"]): str(each["digest"]) for each in descriptors}
    except subprocess.CalledProcessError as error:
        raise BaseUnknown(redact(" ".join(error.stderr.split()))) from None
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise BaseUnknown(f"`docker manifest inspect` failed: {error}") from None
    if platform not in offered:
        raise BaseUnknown(f"{image} is not for {platform}, but for {', '.join(offered)}")
    return offered[platform]
