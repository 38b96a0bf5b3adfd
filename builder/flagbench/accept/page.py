"""The page of a certificate: whether the machine is good, against what, and which device is worst, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:2rem;margin:0}.PASS{color:#18794e}.FAIL{color:#c62828}.INCONCLUSIVE{color:#9a5b00}
@media(prefers-color-scheme:dark){.PASS{color:#4cc38a}.FAIL{color:#ff8a80}.INCONCLUSIVE{color:#ffb74d}}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #8886}"""


def action_text(certificate: Mapping[str, Any]) -> str:
    """What to do, in a sentence."""
    action = certificate["action"]
    if action["do"] == "use":
        return "Use this machine."
    if action["do"] == "run again":
        return f"Run it again for {action['minutes']:g} minutes."
    named = ", ".join(map(str, action["ranks"]))
    devices = f": {', '.join(action['devices'])}" if action["devices"] else ""
    return f"Drain this machine; the evidence is against rank {named}{devices}." if named else "Drain this machine."


def machine_text(certificate: Mapping[str, Any]) -> str:
    """`8 x NVIDIA H100, driver 580.65 on HOST`."""
    facts = certificate["facts"]
    machine = facts["machine"]
    names = sorted({each["name"] for each in machine["devices"]})
    what = f"{facts['gpus']} x {' and '.join(names)}" if names else f"{facts['gpus']} ranks on a processor"
    driver = f", driver {', '.join(machine['drivers'])}" if machine["drivers"] else ""
    return f"{what}{driver}, {machine['host']}"


def render(certificate: Mapping[str, Any]) -> bytes:
    """The page: no script, no request to any host. Deterministic."""
    outcome = certificate["outcome"]
    checks = [
        (
            _outcome(each["outcome"]),
            *(escape(str(each[name])) for name in ("part", "name", "measured", "against", "limit", "reason")),
            _ratio(each["ratio"]),
        )
        for each in certificate["checks"]
    ]
    numbers = [
        (escape(each["part"]), escape(each["name"]), f"{each['value']:.5g} {escape(each['unit'])}", each["scope"])
        for each in certificate["numbers"]
    ]
    software = [(escape(name), escape(str(value))) for name, value in certificate["software"].items()]
    cost = "" if certificate["cost"] is None else f", cost {certificate['cost']:.2f}"
    parts = [
        f"<h1>{_outcome(outcome)}</h1>",
        f"<p><strong>{escape(action_text(certificate))}</strong> {escape(certificate['reason'])}</p>",
        f"<p>{escape(machine_text(certificate))}. {escape(certificate['created_at'])}, "
        f"{certificate['seconds']:.0f} s{cost}.</p>",
        _table("Checks", ("Outcome", "Run", "Check", "Measured", "Against", "Limit", "Why", "Ratio"), checks),
        _table("Efficiency", ("Run", "Rate", "Energy", "Price"), map(_efficiency, certificate["efficiency"])),
        _table("Numbers", ("Run", "Metric", "Value", "Of"), numbers),
        _table("Software", ("Name", "Version"), software),
        f"<p>Vouched for: {escape(certificate['vouched_by'])}. "
        f"flagbench {escape(str(certificate['flagbench']['version']))}.</p>",
    ]
    title = f"{outcome}: {machine_text(certificate)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n'
        + "\n".join(filter(None, parts))
        + "\n</main></body></html>\n"
    ).encode()


def _outcome(outcome: str) -> str:
    return f'<span class="{outcome}">{outcome}</span>'


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    interval = "" if ratio["ci95"] is None else " [{:.3f}, {:.3f}]".format(*ratio["ci95"])
    return f"{ratio['value']:.3f}{interval}"


def _efficiency(each: Mapping[str, Any]) -> Sequence[str]:
    joules, price, unit = each["joules_per_million"], each["price_per_million"], each["unit"]
    return (
        escape(each["part"]),
        f"{each['per_second']:.4g} {unit}/s",
        "unknown" if joules is None else f"{joules:.4g} J per million {unit}",
        "" if price is None else f"{price:.4g} per million {unit}",
    )


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    if not body:
        return ""
    return f"<h2>{title}</h2>\n<div class=scroll tabindex=0><table><tr>{head}</tr>\n{body}</table></div>"
