"""Names, labels, quantities and references as Kubernetes takes them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from flagbench.launchers.kubernetes import syntax


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (syntax.label_fault, ["a", "0a-b", "x" * 63], ["", "-a", "a-", "a.b", "A", "x" * 64, "a\n", "ä"]),
        (syntax.subdomain_fault, ["a.b-c.0", "x" * 253], ["a..b", ".a", "a.", "a_b", "x" * 254]),
        (syntax.key_fault, ["a", "A_b.c", "x.io/Name", "y" * 63], ["", "/a", "x.io/", "X.io/a", "a/b/c", "y" * 64]),
        (syntax.label_value_fault, ["", "A", "a.b_c-d"], ["-a", "a b", "a/b", "z" * 64, "a\n"]),
        (
            syntax.resource_fault,
            ["rdma/hca_shared_devices_a", "vpc.amazonaws.com/efa"],
            ["hugepages", "kubernetes.io/x", "a.kubernetes.io/x", "requests.a/x", "a/"],
        ),
        (syntax.variable_fault, ["_A1"], ["", "1A", "A-B", "A=B", "A\n"]),
        (syntax.subpath_fault, ["a/b..c", "."], ["", "/a", "..", "a/../b", "a\n"]),
        (syntax.registry_fault, ["host:5000/team", "a.b"], ["https://a", "a/", "a/B", "a b", "a@b"]),
        (
            syntax.image_fault,
            ["a:1", "h.io:5000/a/b:c", "a@sha256:" + "0" * 64, "a:1@sha256:" + "0" * 64],
            ["a", "a:latest", "A:1", "a:", "a:1 b", "a@sha256:00", "a:1\n", "-x:1"],
        ),
    ],
)
def test_rules_take_the_good_and_explain_the_bad(rule: object, good: list[str], bad: list[str]) -> None:
    assert callable(rule)
    assert [text for text in good if rule(text)] == []
    assert [text for text in bad if not rule(text)] == []


def test_quantities() -> None:
    values = {"8": 8, "500m": Decimal("0.5"), "1.5Gi": 1.5 * 2**30, "96Gi": 96 * 2**30, "1k": 1000, "2e3": 2000}
    values |= {"+1": 1, ".5": Decimal("0.5"), "1.": 1}
    assert {text: syntax.quantity(text) for text in values} == values
    for wrong in ("", "eight", "8 Gi", "8GiB", "-1", "1e999999999", "٣", "Gi", "1\n", "9" * 33):
        assert syntax.quantity(wrong) is None
