"""What the comparison of nodes says about runs that are written down, without records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalogs import CATALOG
from flagbench.fleet.judge import FleetRuns, judge_fleet
from flagbench.fleet.node_run import NodeRun, NodeValue
from flagbench.fleet.own_checks import OwnChecks
from flagbench.fleet.result import Action, Finding, Fleet, NodeResult, Source
from flagbench.fleet.spread import clipped_middle, limit_in_spreads
from flagbench.fleet.table import number_table
from flagbench_core.exit_codes import ExitCode

LIMITS = CATALOG.fleet_limits
NOW, BEFORE = "2026-11-27T00:00:00Z", "2026-11-20T00:00:00Z"
PROPERTIES = {"devices": "8", "driver": "580", "configuration": "aaaa"}


def run_of(host: str, speed: float = 1.0, memory: float = 1.0, created_at: str = NOW, **properties: str) -> NodeRun:
    """A run of the roofs on a node; the speed is of a matmul."""
    values = {
        "matmul_bf16": NodeValue("product", 700e12 * speed, rank=5),
        "memory_bandwidth": NodeValue("memory", 3e12 * memory, rank=2),
    }
    everything = {**PROPERTIES, **properties}
    return NodeRun(
        host, created_at, "roofs:cuda13", "H100", everything["configuration"], True, values, everything, host
    )


def sound_nodes(count: int = 20, created_at: str = NOW) -> list[NodeRun]:
    """Nodes that differ by 0.4 %."""
    return [run_of(f"gpu-{n:02d}", 1 + 0.004 * (n % 5 - 2) / 1.4, created_at=created_at) for n in range(count)]


def judge(*runs: NodeRun, expected: tuple[str, ...] = (), **fields: object) -> Fleet:
    return judge_fleet(FleetRuns([*sound_nodes(), *runs], expected=expected, **fields), LIMITS)  # type: ignore[arg-type]


def node(fleet: Fleet, host: str) -> NodeResult:
    """What a fleet says about a node."""
    return next(result for result in fleet.nodes if result.host == host)


def test_sound_nodes_need_nothing() -> None:
    fleet = judge()

    assert [result.action for result in fleet.nodes] == [Action.NOTHING] * 20
    assert fleet.exit_code is ExitCode.OK
    assert {number.metric: number.nodes for number in fleet.compared} == {"matmul_bf16": 20, "memory_bandwidth": 20}


@pytest.mark.parametrize(
    ("speed", "memory", "action", "metric"),
    [
        (0.97, 1.0, Action.LOOK, "matmul_bf16"),
        (0.86, 1.0, Action.LOOK, "matmul_bf16"),
        (0.84, 1.0, Action.DRAIN, "matmul_bf16"),
        (1.0, 0.96, Action.LOOK, "memory_bandwidth"),
        (1.0, 0.70, Action.DRAIN, "memory_bandwidth"),
    ],
)
def test_a_slow_node_is_named_with_its_device(speed: float, memory: float, action: Action, metric: str) -> None:
    fleet = judge(run_of("slow", speed, memory))

    assert fleet.nodes[0].host == "slow"
    (finding,) = fleet.nodes[0].findings
    assert (finding.action, finding.source) == (action, Source.PEERS)
    assert finding.value is not None
    assert (finding.value.metric, finding.value.rank) == (metric, {"matmul_bf16": 5, "memory_bandwidth": 2}[metric])
    assert finding.value.share == pytest.approx(min(speed, memory), abs=0.002)
    assert fleet.exit_code is (ExitCode.BELOW if action is Action.DRAIN else ExitCode.INCONCLUSIVE)


def test_what_the_spread_hides_is_not_named_and_the_result_says_so() -> None:
    far_apart = [replace(run, values={"matmul_bf16": NodeValue("product", 1 + 0.02 * (n % 5 - 2) / 1.4, 5)})
                 for n, run in enumerate(sound_nodes())]  # fmt: skip
    slow = replace(run_of("slow"), values={"matmul_bf16": NodeValue("product", 0.93, 5)})

    fleet = judge_fleet(FleetRuns([*far_apart, slow]), LIMITS)

    assert node(fleet, "slow").action is Action.NOTHING
    (number,) = fleet.compared
    assert number.spread == pytest.approx(0.02, rel=0.2)
    assert number.least_difference == pytest.approx(number.limit * number.spread)
    assert number.least_difference > 0.07


def test_nodes_below_eight_are_not_compared() -> None:
    fleet = judge_fleet(FleetRuns([*sound_nodes(6), run_of("slow", 0.5)]), LIMITS)

    assert node(fleet, "slow").action is Action.NOTHING
    assert fleet.compared == ()
    assert len(fleet.notes) == 1


def test_a_spread_that_hides_a_node_at_a_standstill() -> None:
    far_apart = [
        replace(run, values={"matmul_bf16": NodeValue("product", 1.0 + n % 5)}) for n, run in enumerate(sound_nodes())
    ]

    (row,) = number_table(judge_fleet(FleetRuns(far_apart), LIMITS), wide=False).rows

    assert row[-1] == "never"


def test_a_disturbed_node_is_not_drained_for_its_speed() -> None:
    throttled = Finding("slow", Action.LOOK, Source.OWN_CHECKS, "throttled")
    fleet = judge(run_of("slow", 0.7), own_checks={"slow": OwnChecks((throttled,), disturbance="throttled")})

    assert [finding.action for finding in node(fleet, "slow").findings] == [Action.LOOK, Action.LOOK]


def test_a_node_with_other_software_is_named_and_neither_drained_nor_a_peer() -> None:
    below_the_limit = Finding("other", Action.DRAIN, Source.OWN_CHECKS, "below the limit", run="roofs:cuda13")
    fleet = judge(
        run_of("other", 0.7, driver="570"), own_checks={"other": OwnChecks(speed_findings=(below_the_limit,))}
    )

    sources = [finding.source for finding in node(fleet, "other").findings]
    assert (node(fleet, "other").action, sources) == (
        Action.LOOK,
        [Source.OWN_CHECKS, Source.PEERS, Source.DIFFERENCE],
    )
    assert {number.nodes for number in fleet.compared} == {20}
    (difference,) = fleet.differences
    assert (difference.name, [value.nodes for value in difference.values]) == ("driver", [20, 1])
    assert difference.values[1].hosts == ("other",)


def test_fewer_devices_are_a_reason_to_drain_and_other_settings_are_named() -> None:
    fleet = judge(run_of("lost-one", devices="7", configuration="bbbb"), run_of("other", configuration="cccc"))

    assert [finding.action for finding in node(fleet, "lost-one").findings] == [Action.DRAIN]
    assert node(fleet, "other").action is Action.LOOK


def test_half_of_the_devices_or_fewer_are_a_reason_to_look() -> None:
    fleet = judge(run_of("with-one", devices="1", configuration="bbbb"))

    assert [finding.action for finding in node(fleet, "with-one").findings] == [Action.LOOK]


def test_a_second_size_of_nodes_is_compared_among_itself() -> None:
    small = [replace(run, host=f"small-{run.host}", configuration="bbbb", properties={**run.properties,
             "devices": "4", "configuration": "bbbb"}) for run in sound_nodes(12)]  # fmt: skip
    slow = replace(small[0], values={"matmul_bf16": NodeValue("product", 500e12, 1)})

    fleet = judge(*small[1:], slow)

    assert (fleet.nodes[0].host, fleet.nodes[0].findings[0].source) == ("small-gpu-00", Source.PEERS)
    assert (fleet.hosts(Action.DRAIN), fleet.hosts(Action.LOOK)) == (["small-gpu-00"], [])


def test_another_device_model_is_another_group() -> None:
    other_model = replace(run_of("other", 0.4), device="A100")

    assert node(judge(other_model), "other").action is Action.NOTHING


def test_two_device_models_are_told_apart_in_the_tables() -> None:
    others = [replace(run, host=f"a100-{run.host}", device="A100") for run in sound_nodes()]

    table = number_table(judge(*others), wide=False)

    assert {row[0] for row in table.rows} == {"roofs:cuda13 on H100", "roofs:cuda13 on A100"}


def test_a_node_that_became_slower_is_named_at_any_spread_between_nodes() -> None:
    last_week = [run_of(f"gpu-{n:02d}", 1 + 0.02 * (n % 5 - 2) / 1.4, created_at=BEFORE) for n in range(20)]
    this_week = [replace(run, created_at=NOW) for run in last_week]
    slower = run_of("gpu-04", 0.96 * (1 + 0.02 * 2 / 1.4))
    this_week[4] = slower

    fleet = judge_fleet(FleetRuns(this_week, last_week), LIMITS)

    (finding,) = node(fleet, "gpu-04").findings
    assert (finding.action, finding.source) == (Action.LOOK, Source.LAST_RUN)
    assert finding.value is not None
    assert finding.value.share == pytest.approx(0.96, abs=0.002)
    assert fleet.hosts(Action.LOOK) == ["gpu-04"]


def test_what_all_nodes_changed_by_is_held_against_none() -> None:
    faster = [
        replace(run, values={"matmul_bf16": NodeValue("product", 900e12, 5)}) for run in sound_nodes(20, BEFORE)
    ]

    assert judge_fleet(FleetRuns(sound_nodes(), faster), LIMITS).exit_code is ExitCode.OK


def test_new_devices_are_not_compared_with_those_before() -> None:
    last_week = [replace(run, machine="before", values={"matmul_bf16": NodeValue("product", 9e14, 5)})
                 if run.host == "gpu-04" else run for run in sound_nodes(20, BEFORE)]  # fmt: skip

    assert judge_fleet(FleetRuns(sound_nodes(), last_week), LIMITS).exit_code is ExitCode.OK


def test_expected_nodes_without_a_record_are_missing() -> None:
    expected = (*(f"gpu-{n:02d}" for n in range(20)), "silent", "old")
    fleet = judge(expected=expected, last_run_at={"old": BEFORE, "retired": BEFORE})

    assert (fleet.hosts(Action.MISSING), fleet.exit_code) == (["old", "silent"], ExitCode.INCONCLUSIVE)
    assert node(fleet, "old").last_run_at == BEFORE


def test_a_node_that_lacks_one_of_two_cases_is_missing() -> None:
    trained = [replace(run, run="llama3-8b:cuda13") for run in sound_nodes(19)]

    fleet = judge(*trained)

    assert [finding.run for finding in node(fleet, "gpu-19").findings] == ["llama3-8b:cuda13"]
    assert fleet.hosts(Action.MISSING) == ["gpu-19"]


def test_a_run_that_did_not_end_well_is_no_peer() -> None:
    failed = replace(run_of("failed"), is_sound=False, values={}, properties={})
    look = Finding("failed", Action.LOOK, Source.OWN_CHECKS, "its run ended as failed")

    fleet = judge(failed, own_checks={"failed": OwnChecks((look,))})

    assert node(fleet, "failed").action is Action.LOOK
    assert {number.nodes for number in fleet.compared} == {20}


def test_a_run_with_other_settings_does_not_hide_the_usual_one() -> None:
    examined_again = run_of("gpu-03", created_at="2026-11-27T09:00:00Z", configuration="a soak")

    assert judge(examined_again).exit_code is ExitCode.OK


def test_a_newest_run_with_fewer_devices_counts() -> None:
    after_the_loss = run_of("gpu-03", created_at="2026-11-27T09:00:00Z", devices="7", configuration="of seven")

    assert judge(after_the_loss).hosts(Action.DRAIN) == ["gpu-03"]


def test_sick_nodes_do_not_widen_the_spread() -> None:
    sound = [1 + 0.004 * (n % 5 - 2) / 1.4 for n in range(50)]

    alone = clipped_middle(sound, least_spread=0.002)
    beside_sick = clipped_middle([*sound, *[0.9] * 10], least_spread=0.002)

    assert alone is not None
    assert beside_sick is not None
    assert beside_sick.spread == pytest.approx(alone.spread)
    assert alone.spread == pytest.approx(0.004, rel=0.1)


def test_equal_values_have_the_least_spread() -> None:
    assert clipped_middle([5.0] * 8, least_spread=0.002) == (5.0, 0.002)


def test_zeros_have_no_middle() -> None:
    assert clipped_middle([0.0] * 8, least_spread=0.002) is None


@pytest.mark.parametrize(("nodes", "spreads"), [(8, 6.0), (16, 5.2), (64, 4.6), (512, 4.7)])
def test_more_nodes_have_another_limit(nodes: int, spreads: float) -> None:
    assert limit_in_spreads(nodes, 7, 0.01) == pytest.approx(spreads, abs=0.1)
