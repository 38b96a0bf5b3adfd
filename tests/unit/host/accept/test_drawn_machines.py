"""The machines of `make bench-accept_simulation`: their records are valid, and acceptances find what was drawn."""

import pytest

from catalogs import CATALOG
from flagbench.verdict import rules
from flagbench.verdict.recompute import recompute

np = pytest.importorskip("numpy")

from drawn_machines import H100, LINK, NO_FAULT, PRODUCTS, Fault, History, Machines, conclusion  # noqa: E402


def test_a_sound_machine_passes_beside_its_earlier_nights():
    found, checks, _ = conclusion(Machines(H100), NO_FAULT, History(5), np.random.default_rng(1))

    assert (found.outcome, found.action.do) == ("PASS", "use")
    assert {"mamf_published_fp8", "memory_bandwidth", "h2d_pinned"} <= {check.name for check in checks}


def test_a_device_with_slow_products_is_drained():
    fault = Fault(0.8, PRODUCTS, rank=5)

    found, _, _ = conclusion(Machines(H100, 8), fault, History(), np.random.default_rng(1))

    assert (found.outcome, found.action.ranks, found.action.devices) == ("FAIL", (5,), ("GPU-5",))


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_numbers_of_a_drawn_record_follow_from_its_evidence(gpus):
    fault = Fault(0.1, LINK, rank=0)

    _, _, records = conclusion(Machines(H100, gpus), fault, History(), np.random.default_rng(1))

    (record,) = records.values()
    subject = recompute(record, CATALOG.cases["roofs"])
    assert (subject.differences, subject.unmatched, subject.unreadable) == ((), (), ())
    assert rules.check_record(subject) == ()
    link = next(each for each in record.measurements if each.name == "h2d_pinned")
    assert link.devices[0] == pytest.approx(5.5e9, rel=0.05)
