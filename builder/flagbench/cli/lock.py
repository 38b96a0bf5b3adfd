"""`flagbench lock`: resolves the packages and the base image of a stack, and writes them to the stack's lock file.

A stack is the software for a family of devices. What cannot be looked up is written as unresolved.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.images.lock import GivenDigest, GivenDigests, GivenWheel, require_platform, update_lock
from flagbench.images.lockfile import SHA256, UNKNOWN_SOURCE, DigestOf, Lock, lock_path, read_lock
from flagbench.images.render.templates import images_root
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import get_stack, require_base
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack
from flagbench_core.exit_codes import ExitCode

_URL = re.compile(r'https?://[^\s"\\]+')
_print_progress = partial(typer.echo, err=True)
"""Prints a line on stderr: stdout is for the results."""


def command(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(metavar="STACK", autocompletion=complete.stacks, help="Stacks, by name or alias."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stack of the catalog.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check that the locks fit the manifests; writes nothing. A registry is asked only whether an "
            "index has the stack's platform.",
        ),
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade", help="Take the newest versions and the base's current digest instead of keeping the lock's."
        ),
    ] = False,
    base_digest: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST[=URL]",
            help="The base's digest, sha256:..., if its registry cannot be reached from here, and who states it; the "
            "image's id if the stack has no public base.",
        ),
    ] = None,
    base_digest_of: Annotated[
        DigestOf | None,
        typer.Option(
            help="What --base-digest is of: the image for the stack's platform, or an index of several platforms. "
            "Looked up if the registry can be reached.",
        ),
    ] = None,
    wheel_digest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHEEL=DIGEST[=URL]",
            help="The digest of an unresolved package's wheel: its address, sha256:..., and who states it.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Lock the packages and the base of stacks, by hash.

    Packages are resolved by uv, with its own settings (UV_DEFAULT_INDEX, UV_INDEX, SSL_CERT_FILE), the base by
    `docker manifest inspect`, with the accounts of `docker login`. What cannot be looked up is written as
    unresolved, with the reason, and the command exits 15; `flagbench build` refuses such a lock without
    --allow-unlocked. --check exits 2 where a lock is missing, malformed or stale, or where its base is an index
    without the stack's platform.

    --json prints {"locks": [{stack, path, digest, changed, packages, base {image, digest, digest_of, source},
    unresolved [{name, version, reason}]}]}.
    """
    catalog = load_catalog_without_claims()
    chosen = _choose_stacks(catalog, stacks or [], every=every)
    base = None
    if base_digest is not None:
        base = _parse_digest(base_digest, "--base-digest")
    wheels = [_parse_wheel(text) for text in wheel_digest or ()]
    digests = GivenDigests(base, base_digest_of, tuple(wheels))
    if digests != GivenDigests() and len(chosen) > 1:
        raise FlagbenchError("digests are given for several stacks", remedy="name one stack")
    if base_digest_of is not None and base_digest is None:
        raise FlagbenchError("--base-digest-of is given without a digest", remedy="add --base-digest")
    images = images_root(catalog)
    documents: list[dict[str, Any]] = []
    unresolved: list[str] = []
    for stack in chosen:
        if check:
            lock = read_lock(stack, images)
            changed = False
            require_platform(stack, lock)
        else:
            lock, changed = update_lock(stack, images, _print_progress, upgrade=upgrade, digests=digests)
        documents.append(_as_json(lock, images, changed))
        if _has_unresolved(lock):
            unresolved.append(lock.stack)
        if not as_json:
            _print_lock(lock, images, _describe_state(checked=check, changed=changed))
    if as_json:
        echo_json({"locks": documents})
    if unresolved and not check:
        raise FlagbenchError(
            f"something stays unresolved in the locks of {', '.join(unresolved)}",
            remedy="lock them again where the indexes and registries named above can be reached, or give digests "
            "with --base-digest and --wheel-digest",
            code=ExitCode.ENGINE,
        )


def _parse_digest(text: str, option: str) -> GivenDigest:
    """Parse `DIGEST[=URL]`, the value of an option. Raises FlagbenchError (USAGE)."""
    digest, _, source = text.partition("=")
    if not SHA256.fullmatch(digest):
        raise FlagbenchError(
            f"{option}: {digest!r} is not a digest",
            remedy="write sha256: and 64 hexadecimal digits, as `docker images --digests` and pip's hashes have them",
        )
    if source and not _URL.fullmatch(source):
        raise FlagbenchError(
            f"{option}: {source!r} is not an address", remedy="write who states the digest as https://..."
        )
    return GivenDigest(digest, source or UNKNOWN_SOURCE)


def _parse_wheel(text: str) -> GivenWheel:
    """Parse `WHEEL=DIGEST[=URL]`, where WHEEL is an address. Raises FlagbenchError (USAGE)."""
    url, separator, digits_and_source = text.partition("=sha256:")
    if not separator or not _URL.fullmatch(url):
        raise FlagbenchError(
            f"--wheel-digest: {text!r} is not a wheel with its digest",
            remedy="write https://.../NAME.whl=sha256:..., and after another = who states it",
        )
    return GivenWheel(url, _parse_digest(f"sha256:{digits_and_source}", "--wheel-digest"))


def _has_unresolved(lock: Lock) -> bool:
    """Whether something that can be locked is not locked. A base that is not public cannot be locked."""
    base_is_unresolved = lock.base_image is not None and lock.base_digest is None
    return bool(lock.unresolved) or base_is_unresolved


def _choose_stacks(catalog: Catalog, names: list[str], *, every: bool) -> list[Stack]:
    """The stacks that are named, each once, or all that have a public base.

    Raises FlagbenchError (USAGE) for an unknown stack, and if no stack is named.
    """
    remedy = "name stacks (`flagbench list stacks` shows them) or give --all"
    if every and names:
        raise FlagbenchError("stacks are named, and --all is given too", remedy=remedy)
    if not every and not names:
        raise FlagbenchError("no stack is named", remedy=remedy)
    if every:
        return [stack for stack in catalog.stacks.values() if stack.base]
    chosen: dict[str, Stack] = {}
    for name in names:
        stack = get_stack(name, catalog)
        chosen[stack.name] = stack
    for stack in chosen.values():
        require_base(stack)
    return list(chosen.values())


def _as_json(lock: Lock, images: Path, changed: bool) -> dict[str, Any]:
    return {
        "stack": lock.stack,
        "path": str(lock_path(lock.stack, images)),
        "digest": lock.digest,
        "changed": changed,
        "packages": len(lock.entries),
        "base": {
            "image": lock.base_image,
            "digest": lock.base_digest,
            "digest_of": lock.base_digest_of,
            "source": lock.base_digest_source,
        },
        "unresolved": [
            {"name": package.name, "version": package.version, "reason": package.reason}
            for package in lock.unresolved
        ],
    }


def _describe_state(*, checked: bool, changed: bool) -> str:
    """What was done with a lock."""
    if checked:
        return "fits its manifest"
    if changed:
        return "written"
    return "unchanged"


def _print_lock(lock: Lock, images: Path, state: str) -> None:
    print(f"{lock_path(lock.stack, images)}: {state}, {len(lock.entries)} packages")
    if lock.base_digest is None:
        print(f"  unresolved: the base {lock.base_image or '(none is public: name it with --base)'}")
    for package in lock.unresolved:
        print(f"  unresolved: {package.name}=={package.version} ({package.reason})")
