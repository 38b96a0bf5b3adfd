"""Whether what was compared is the same work: nothing but the listed quirks may differ, and the cost not at all."""

from typing import Any, Dict, List

from .pairs import BOUNDS

# Bytes moved, and those kept for the backward pass, may differ by this share in any case: nothing but a few words.
FEW_WORDS = 1e-6
# A share of the bytes may differ from the one that a quirk lists by so much of it, where it was measured at the same
# sizes; at others it is at most LARGEST_SHARE.
SHARE_TOLERANCE = 0.05
LARGEST_SHARE = 0.03
# Losses may differ by so many nats, by precision. Measured on a processor: 0 in the counted steps of all cases, and
# in bf16 up to 3e-4 after twenty updates, whose gradients were summed in another order.
LOSSES = {"fp32": 5e-5, "tf32": 5e-5, "fp16": 5e-5, "bf16": 2e-3}


def listed(case: Dict[str, Any], layers: int) -> Dict[str, Dict[str, int]]:
    """The operators that quirks of a case manifest have more or fewer of than the publisher, by quirk and name.

    A quirk's `difference.operators` has for each name how many more a step takes, and how many more each layer.
    """
    return {
        quirk["id"]: {
            name: more.get("step", 0) + layers * more.get("layer", 0)
            for name, more in quirk["difference"]["operators"].items()
        }
        for quirk in case["quirks"]
        if "difference" in quirk
    }


def differences(inventories: Dict[str, Dict[str, Any]]) -> Dict[str, Dict[str, float]]:
    """Operators, ours less the publisher's, where they differ: count, and the share of all bytes of a step."""
    ours, theirs = inventories["ours"], inventories["publisher"]
    total = sum(theirs["bytes"].values())
    found = {}
    for name in sorted(set(ours["operators"]) | set(theirs["operators"])):
        count = ours["operators"].get(name, 0) - theirs["operators"].get(name, 0)
        share = (ours["bytes"].get(name, 0) - theirs["bytes"].get(name, 0)) / total
        if count or share:
            found[name] = {"count": count, "share": share}
    return found


def judge(case: Dict[str, Any], config: Dict[str, Any], compared: Dict[str, Any], small: bool) -> Dict[str, Any]:
    """The differences, what of them is listed with its share, and `faults`: why this is not the publisher's work.

    `config`: the resolved configuration of what was compared. `small`: its sizes are those of `sizes.SMALL`, of which
    the manifests list the shares.

    An operator whose count agrees and whose bytes do not is a fault of its own: it reads or writes something else.
    """
    inventories = compared["inventories"]
    found = differences(inventories)
    quirks, left = [], {name: entry["count"] for name, entry in found.items()}
    faults: List[str] = []
    for quirk, operators in listed(case, config["model"]["layers"]).items():
        limit = next(q["difference"]["share"] for q in case["quirks"] if q["id"] == quirk)
        share = sum(abs(found[name]["share"]) for name in operators if name in found)
        quirks.append({"id": quirk, "operators": operators, "share": share})
        least, most = (limit * (1 - SHARE_TOLERANCE), limit * (1 + SHARE_TOLERANCE)) if small else (0, LARGEST_SHARE)
        if not least - FEW_WORDS <= share <= most + FEW_WORDS:
            faults.append("quirk %s: %.3g of a step's bytes, not %.3g to %.3g" % (quirk, share, least, most))
        for name, count in operators.items():
            left[name] = left.get(name, 0) - count
    explained = {name for entry in quirks for name in entry["operators"]}
    for name, count in sorted(left.items()):
        if count or name not in explained:
            entry = found.get(name, {"count": 0, "share": 0.0})
            faults.append("%s %+d, %+.3g of a step's bytes" % (name, count, entry["share"]))
    saved = {side: inventories[side]["saved_bytes"] for side in ("ours", "publisher")}
    expected = sum(q["difference"].get("saved_share", 0.0) for q in case["quirks"] if "difference" in q)
    off = (saved["ours"] - saved["publisher"]) / max(saved["publisher"], 1) - expected  # 0 where nothing trains
    if abs(off) > max(FEW_WORDS, SHARE_TOLERANCE * abs(expected)):
        faults.append("saved for backward: %d bytes, the publisher's %d" % (saved["ours"], saved["publisher"]))
    gap, limit = compared["largest_loss_difference"], LOSSES[config["precision"]]
    if gap > limit:
        faults.append("losses differ by up to %.2g nats, more than %.2g" % (gap, limit))
    return {"differences": found, "quirks": quirks, "faults": faults}


def judge_ratio(ratio: Dict[str, Any]) -> List[str]:
    """Why a step does not take the publisher's time."""
    low, high = BOUNDS
    slow = []
    if ratio["low"] is None:  # of a few rounds: where their centre lies is known, and not how well
        if not low <= ratio["value"] <= high:
            slow.append("the ratio %.3f is not within %g to %g" % (ratio["value"], low, high))
    elif not low <= ratio["low"] <= ratio["high"] <= high:
        slow.append("the interval [%.3f, %.3f] is not within %g to %g" % (ratio["low"], ratio["high"], low, high))
    return slow
