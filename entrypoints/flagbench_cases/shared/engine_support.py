"""Checks what a case's engines support, as listed under `engines` in its manifest: stacks, nodes, layouts,
resuming."""

from typing import Any, Dict

from flagbench_cases.shared.errors import UsageError


def engine_of(case: Dict[str, Any], config: Dict[str, Any]) -> str:
    """The engine of a resolved configuration: `engine.name`, else the case's only engine."""
    return config["engine"]["name"] if "engine" in config else next(iter(case["engines"]))


def check(case: Dict[str, Any], stack: Dict[str, Any], config: Dict[str, Any]) -> None:
    """Raise UsageError if the engine does not support the stack, the number of nodes or ranks, or the layout."""
    name = engine_of(case, config)
    engine, nodes = case["engines"][name], config["nodes"]
    why = engine.get("does_not_run", {}).get(stack["name"])
    if why:
        raise UsageError(
            "the %s engine does not run on the stack %s: %s" % (name, stack["name"], why),
            instead(case, name, "choose another stack"),
        )
    if nodes > engine.get("max_nodes", nodes):
        most = "one node" if engine["max_nodes"] == 1 else "at most %d nodes" % engine["max_nodes"]
        raise UsageError(
            "the %s engine supports %s, but this run has %d" % (name, most, nodes),
            instead(case, name, "use fewer nodes"),
        )
    _check_layout(case, name, config)


def _check_layout(case: Dict[str, Any], name: str, config: Dict[str, Any]) -> None:
    axes, section = case["engines"][name]["layout"], config.get("layout", {})
    tp, pp = section.get("tp", 1), section.get("pp", 1)
    ranks = config["nodes"] * config["gpus"]
    if ranks % (tp * pp):
        raise UsageError(
            "%d rank(s) cannot be divided into replicas of %d ranks (tp %d x pp %d)" % (ranks, tp * pp, tp, pp),
            "choose --nodes and --gpus so that their product is a multiple of %d, or another layout by %s"
            % (tp * pp, " and ".join("--set " + axis for axis in ("tp", "pp") if axis in case["settable"])),
        )
    for axis, size in (("dp", ranks // (tp * pp)), ("tp", tp), ("pp", pp)):
        if size > 1 and axis not in axes:
            raise UsageError(
                "the %s engine does not support a layout with %s %d" % (name, axis, size),
                instead(case, name, "it supports only %s" % (", ".join(axes) or "one rank")),
            )
        for path in case["engines"][name].get("divides", {}).get(axis, ()):
            found: Any = config
            for key in path.split("."):
                found = found[key]
            if found % size:
                raise UsageError(
                    "a layout with %s %d does not divide %s, which is %d" % (axis, size, path, found),
                    "change --gpus, or the layout, so that %s is a divisor of %d" % (axis, found),
                )


def check_checkpoints(case: Dict[str, Any], config: Dict[str, Any], writes: Any, resumes: Any) -> None:
    """Raise UsageError if the run should write checkpoints or resume, and its case, engine or layout does not support
    it."""
    if resumes and not case["resume"]:
        raise UsageError("%s does not support resuming" % case["name"], "omit --resume")
    name = engine_of(case, config)
    if not case["engines"][name].get("resume", case["resume"]):
        for asked, words, option in (
            (resumes, "cannot resume from a checkpoint", "--resume"),
            (writes, "cannot write checkpoints", "--set checkpoint_every_steps"),
        ):
            if asked:
                raise UsageError(
                    "the %s engine %s" % (name, words), instead(case, name, "omit %s" % option, or_else=True)
                )


def instead(case: Dict[str, Any], engine: str, remedy: str, or_else: bool = False) -> str:
    """The remedy; if --set can choose another engine, that instead of `remedy`, or both with `or_else`."""
    settings = [name for name, rule in case["settable"].items() if rule["path"] == "engine.name"]
    others = [name for name in case["engines"] if name != engine]
    if not settings or not others:
        return remedy
    other = "use --set %s=%s" % (settings[0], others[0])
    return "%s, or %s" % (other, remedy) if or_else else other
