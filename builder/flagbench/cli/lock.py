"""`flagbench lock`: find out which packages and which base a stack's image is made of, and write it down."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import get_stack
from flagbench.catalog.model import Catalog, Stack
from flagbench.cli import complete
from flagbench.cli.options import CaBundleOption, PipSourceOption
from flagbench.cli.output import echo_json
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.files import existing_lock, load_lock, lock_path, read_lock, stated_base, write_lock
from flagbench.locks.metadata import read_tables
from flagbench.locks.model import Lock
from flagbench.locks.pylock import SHA256
from flagbench.locks.sources import Sources
from flagbench.render.roots import images_root

_progress = partial(typer.echo, err=True)
"""Prints a line on stderr: stdout is for what the command found."""


def command(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STACK]...", autocompletion=complete.stacks, help="Stacks, by name or alias."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stack of the catalog.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that the locks fit the manifests; no network, writes nothing.")
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade", help="Take the newest versions, and ask for the base again, instead of keeping the lock's."
        ),
    ] = False,
    base_digest: Annotated[
        str | None,
        typer.Option(
            metavar="sha256:...",
            help="The base's digest, where its registry cannot be asked from here; the image's id where the stack "
            "has no public base.",
        ),
    ] = None,
    pip_source: PipSourceOption = None,
    ca_bundle: CaBundleOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was locked as JSON.")] = False,
) -> None:
    """Lock the packages and the base of stacks, by hash.

    What cannot be asked from here is written as unresolved, with the reason, and the command exits 15;
    `flagbench build` refuses such a lock without --allow-unlocked. --check exits 2 where a lock is missing,
    malformed or stale.

    --json prints {"locks": [{stack, path, digest, changed, packages, base {image, digest}, unresolved [{name,
    version, reason}]}]}.
    """
    catalog = load_catalog(claims=False)
    chosen = _chosen(catalog, stacks or [], every=every)
    _require_digest(base_digest, chosen)
    images = images_root(catalog)
    sources = Sources.chosen(pip_source, ca_bundle)
    results = []
    for stack in chosen:
        _require_own_path(stack, catalog, images)
        if check:
            lock, changed = read_lock(stack, images), False
        else:
            # requests and docker-py, which --check does not need, take longer to import than it takes to run.
            from flagbench.locks.resolve import LockOptions, make_lock

            previous = _previous(stack, images, upgrade)
            options = LockOptions(sources, read_tables(images), previous, upgrade, base_digest)
            lock = make_lock(stack, options, _progress)
            changed = write_lock(lock, images)
        results.append(_as_json(lock, images, changed))
        if not as_json:
            _tell(results[-1], checked=check)
    if as_json:
        echo_json({"locks": results})
    open_ends = [result["stack"] for result in results if result["unresolved"] or not result["base"]["digest"]]
    if open_ends and not check:
        raise FlagbenchError(
            f"something stays unresolved in the locks of {', '.join(open_ends)}",
            remedy="lock them again where the indexes and registries named above can be reached, or give a base's "
            "digest with --base-digest",
            code=ExitCode.ENGINE,
        )


def _chosen(catalog: Catalog, names: list[str], *, every: bool) -> list[Stack]:
    """The named stacks, or all of them, each once. Raises FlagbenchError (usage) for none or an unknown one."""
    if every == bool(names):
        raise FlagbenchError(
            "stacks are named, and --all is given too" if every else "no stack is named",
            remedy="name stacks (`flagbench list stacks` shows them) or give --all",
        )
    if every:
        return list(catalog.stacks.values())
    return list({stack.name: stack for stack in (get_stack(name, catalog) for name in names)}.values())


def _require_digest(base_digest: str | None, chosen: list[Stack]) -> None:
    """Raises FlagbenchError (usage) for a --base-digest that is malformed, or for several stacks or bases."""
    if base_digest is None:
        return
    if len(chosen) > 1:
        raise FlagbenchError(
            f"--base-digest is the digest of one base, and {len(chosen)} stacks are named",
            remedy="lock these stacks one by one",
        )
    if not SHA256.fullmatch(base_digest):
        raise FlagbenchError(
            f"{base_digest!r} is not a digest",
            remedy="give --base-digest sha256: and 64 hexadecimal digits, as `docker images --digests` shows them",
        )
    _, stated = stated_base(chosen[0])
    if stated not in (None, base_digest):
        raise FlagbenchError(
            f"--base-digest contradicts base.image of {chosen[0].name}, which has the digest {stated}",
            remedy=f"leave --base-digest out, or correct {chosen[0].path}",
        )


def _previous(stack: Stack, images: Path, upgrade: bool) -> Lock | None:
    """The lock that is there: versions of a stale one are kept too; a malformed one is replaced by --upgrade only."""
    try:
        return load_lock(stack.name, images)
    except FlagbenchError as error:
        if not upgrade:
            raise
        _progress(f"{stack.name}: nothing is taken from the earlier lock: {error.message}")
        return None


def _as_json(lock: Lock, images: Path, changed: bool) -> dict[str, Any]:
    return {
        "stack": lock.stack,
        "path": str(existing_lock(lock.stack, images)),
        "digest": lock.digest,
        "changed": changed,
        "packages": len(lock.entries),
        "base": {"image": lock.base_image, "digest": lock.base_digest},
        "unresolved": [{"name": e.name, "version": e.version, "reason": e.reason} for e in lock.unresolved],
    }


def _tell(result: dict[str, Any], *, checked: bool) -> None:
    state = "fits its manifest" if checked else "written" if result["changed"] else "unchanged"
    print(f"{result['path']}: {state}, {result['packages']} packages")
    if result["base"]["digest"] is None:
        print(f"  unresolved: the base {result['base']['image'] or '(none is public: name it with --base)'}")
    for entry in result["unresolved"]:
        print(f"  unresolved: {entry['name']}=={entry['version']} ({entry['reason']})")


def _require_own_path(stack: Stack, catalog: Catalog, images: Path) -> None:
    """Raises FlagbenchError (usage) if another stack's lock has the same file name."""
    path = lock_path(stack.name, images)
    for other in catalog.stacks:
        if other != stack.name and lock_path(other, images) == path:
            raise FlagbenchError(
                f"the locks of {stack.name} and {other} have the same name, {path.name}",
                remedy="rename one of the stacks: in the name of a lock, a dot becomes a dash",
            )
