"""From parsed arguments to a resolved request, the node's placement, and the data folder."""

from __future__ import annotations

import argparse
import os
import uuid
from typing import Any, NamedTuple

from flagbench_cases.node.placement import Placement, locate_node
from flagbench_cases.record import stores, time_of_day
from flagbench_cases.record.assemble import new_record_id
from flagbench_cases.record.request import Request
from flagbench_cases.shared import checkpoint_facts, manifests, user_home
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.redaction import option_names, redact
from flagbench_core import config, process_limits
from flagbench_core.case_kinds import MEASURE
from flagbench_core.data_folders import find_folders

ROOFS_SHARE = 6
"""How many times longer the case roofs takes (120 s) than the roofs that are measured before the steps (20 s)."""
FALLBACK_STACK = {"name": "cpu", "device": {"kind": "cpu"}, "accelerators": [], "expects": {}}


def new_run_id() -> str:
    """A generated run id."""
    return f"run-{uuid.uuid4().hex[:12]}"


def unresolved(argv: list[str], arguments: argparse.Namespace | None) -> Request:
    """The request with the fields that are available before it is resolved."""
    if arguments is None:
        return Request(
            argv=option_names(argv),
            case=redact(_likely_case(argv)),
            stack=FALLBACK_STACK,
            run_id=new_run_id(),
            preset="reference",
            nodes=1,
            gpus=1,
        )
    return Request(
        argv=[redact(argument) for argument in argv],
        case=arguments.case,
        stack=FALLBACK_STACK,
        run_id=arguments.run_id or new_run_id(),
        preset=arguments.preset or "reference",
        nodes=arguments.nodes,
        gpus=arguments.gpus,
    )


def _likely_case(argv: list[str]) -> str:
    """The case in arguments that could not be parsed: a name of one, else the first word."""
    words = [argument for argument in argv if not argument.startswith("-")]
    names = manifests.case_names()
    for word in words:
        if word in names:
            return word
    if words:
        return words[0]
    return "unknown"


def refuse_removed_folder(arguments: argparse.Namespace) -> None:
    """Raise UsageError for paths that are relative to the working directory, which was removed."""
    names = ("data", "weights", "out", "resume", "store", "bundle")
    paths = {name: getattr(arguments, name) for name in names}
    if paths["data"] == "synthetic":
        del paths["data"]
    user_home.refuse_relative(paths)


class Resolved(NamedTuple):
    """A resolved request, and what it needs."""

    request: Request
    placement: Placement
    data: str | None
    """The data folder."""
    store: stores.Store | None


def resolve(arguments: argparse.Namespace, request: Request) -> Resolved:
    """The resolved request, the node's placement, the data folder and the store.

    Raises UsageError for contradictory arguments, DataError for unusable weights or checkpoints.
    """
    case = manifests.load_case(arguments.case)
    stack = manifests.load_stack(os.environ.get("FLAGBENCH_STACK", "cpu"))
    arguments.preset = choose_preset(arguments, case, stack)
    check_ranks(arguments, stack)
    store = stores.open_store(arguments.store)
    for option in ("data", "weights", "out", "resume", "bundle"):
        if "://" in (getattr(arguments, option) or ""):
            raise UsageError(
                f"--{option} takes a folder, not a URL",
                "give a folder; `aws s3 sync` copies folders from and to buckets",
            )
    for option in ("out", "bundle"):
        if getattr(arguments, option):
            setattr(arguments, option, os.path.abspath(getattr(arguments, option)))
    if arguments.data == "":
        raise UsageError("--data is empty", "give a folder, or --data synthetic")
    folders = find_folders(case, arguments.preset, arguments.data, arguments.weights, "/data")
    options = config.Options(
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        preset=arguments.preset,
        precision=arguments.precision,
        seed=arguments.seed,
        source=folders.source,
        weights=folders.weights is not None,
        steps=arguments.steps,
        max_samples=arguments.max_samples,
        full=arguments.full,
        settings=tuple(arguments.set),
        roofs=arguments.roofs,
        resume=bool(arguments.resume),
        out=bool(arguments.out),
    )
    try:
        resolved = config.resolve(case, stack, options)
    except config.ConfigError as error:
        raise UsageError(error.message, error.remedy) from None
    roofs = None
    if arguments.roofs:
        roofs = roofs_beside(resolved)
    placement = locate_node(arguments.nodes, arguments.node_rank, arguments.master)
    arguments.weights = folders.weights
    arguments.resume = find_checkpoint(arguments.resume, resolved)
    request = request.resolved(case, stack, resolved)._replace(run_id=arguments.run_id or request.run_id)
    request = request._replace(record_id=new_record_id(request), begun=time_of_day.read(), roofs=roofs)
    return Resolved(request, placement, folders.data, store)


def choose_preset(arguments: argparse.Namespace, case: dict[str, Any], stack: dict[str, Any]) -> str:
    """The preset, by default `reference`.

    Raises UsageError if none is given on a processor, where the reference preset can take days.
    """
    if arguments.preset is not None:
        return arguments.preset
    if stack["device"]["kind"] == "cpu" and case.get("kind") != MEASURE and not arguments.describe:
        raise UsageError(
            "no --preset is given, and the reference preset can take days on a processor",
            "add --preset tiny, which takes seconds, or --preset reference",
        )
    return "reference"


def check_ranks(arguments: argparse.Namespace, stack: dict[str, Any]) -> None:
    """Raise UsageError for more ranks than the processors of this node take. --describe may be of another node."""
    if stack["device"]["kind"] != "cpu" or arguments.describe:
        return
    excess = process_limits.excess_of_ranks(arguments.gpus)
    if excess is not None:
        raise UsageError(excess, "use fewer --gpus, or more processors")


def roofs_beside(resolved: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the roofs that are measured before the steps of another case, in its precision."""
    roofs = config.preset_of(manifests.load_case("roofs")["presets"], resolved["preset"])
    roofs.update(case="roofs", **{name: resolved[name] for name in ("nodes", "gpus", "precision")})
    roofs["measure"]["seconds"] /= ROOFS_SHARE
    return roofs


def find_checkpoint(folder: str | None, resolved: dict[str, Any]) -> str | None:
    """The checkpoint that `--resume` selects, checked against the configuration."""
    if not folder:
        return None
    return checkpoint_facts.find(os.path.abspath(folder), resolved)
