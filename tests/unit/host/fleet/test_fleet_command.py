"""`flagbench fleet` on stores of drawn records: nodes of one H100, one of them with a fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.store import Store
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import ROOT, Flagbench

pytest.importorskip("numpy")

from drawn_fleets import FAULTS, SOUND, NodeFault, fleet_record, host_name

NODES = 9
SPREAD = 0.004
BY_NAME = {fault.name: fault for fault in FAULTS}


def put_fleet(store: Store, fault: NodeFault = SOUND, day: int = 0, nodes: int = NODES) -> None:
    """Put the records of nodes into a store; the first node has the fault."""
    for index in range(nodes):
        content = fleet_record(host_name(index), index, SPREAD, fault if index == 0 else SOUND, gpus=1, day=day)
        store.put(content)


def names_of(document: dict[str, Any], action: str) -> list[str]:
    """The names of the nodes with an action."""
    return [node["host"] for node in document["nodes"] if node["action"] == action]


def judged(flagbench: Flagbench, *options: str, code: ExitCode) -> dict[str, Any]:
    """The JSON of the command, which ends with this exit code."""
    ended = flagbench("fleet --json", *options)
    assert ended.code == code, ended
    document: dict[str, Any] = json.loads(ended.out)
    return document


def test_a_sound_fleet_exits_with_0(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store)

    document = judged(flagbench, code=ExitCode.OK)

    assert names_of(document, "nothing") == sorted(
        names_of(document, "nothing"), key=lambda host: _spreads(document, host)
    )
    assert len(document["nodes"]) == NODES
    assert {number["nodes"] for number in document["compared"]} == {NODES}
    assert {number["kind"] for number in document["compared"]} == {"product", "memory", "host-link"}
    wide = flagbench("fleet --wide").out
    assert wide.startswith(f"{NODES} nodes: nothing to do")
    assert "-0.0" not in wide  # of the node in the middle


def _spreads(document: dict[str, Any], host: str) -> float:
    spreads: float = next(node for node in document["nodes"] if node["host"] == host)["slowest"]["spreads"]
    return spreads


@pytest.mark.parametrize(
    ("fault", "action", "sources"),
    [
        ("20 % slow", "drain", {"own checks", "peers"}),
        ("5 % slow", "look", {"peers"}),
        ("one bit differs", "drain", {"own checks"}),
        ("another image", "look", {"difference"}),
        ("throttles by 20 %, reported", "look", {"own checks", "peers"}),
    ],
)
def test_a_planted_fault_is_named(
    store: Store, flagbench: Flagbench, fault: str, action: str, sources: set[str]
) -> None:
    put_fleet(store, BY_NAME[fault])

    code = ExitCode.BELOW if action == "drain" else ExitCode.INCONCLUSIVE
    document = judged(flagbench, code=code)

    node = document["nodes"][0]
    assert (node["host"], node["action"]) == ("gpu-001", action)
    assert {finding["source"] for finding in node["findings"]} == sources
    assert len(names_of(document, "nothing")) == NODES - 1


def test_a_list_of_nodes_names_the_missing(
    store: Store, flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fleet(store)
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"node/{host_name(index)}.cluster.local\n" for index in range(NODES + 1)))

    document = judged(flagbench, f"--hosts={hosts}", code=ExitCode.INCONCLUSIVE)

    assert names_of(document, "missing") == ["gpu-010.cluster.local"]
    assert document["nodes"][-1]["host"].endswith(".cluster.local")  # as the scheduler names it


def test_records_of_the_week_before_are_the_nodes_own_last_runs(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store)
    put_fleet(store, BY_NAME["5 % slow"], day=8)

    document = judged(flagbench, code=ExitCode.INCONCLUSIVE)

    sources = [finding["source"] for finding in document["nodes"][0]["findings"]]
    assert (document["nodes"][0]["host"], set(sources)) == ("gpu-001", {"peers", "its own last run"})


def test_a_node_that_missed_its_weekly_run_is_missing(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store, nodes=NODES + 1)
    put_fleet(store, day=7)

    document = judged(flagbench, code=ExitCode.INCONCLUSIVE)

    assert names_of(document, "missing") == [host_name(NODES)]
    assert judged(flagbench, "--since=2026-11-01", code=ExitCode.OK)["since"] == "2026-11-01T00:00:00Z"


def test_without_a_list_a_node_is_missing_for_four_weeks(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store, day=8)
    for host, created_at in (("lost", "2026-10-20T00:00:00Z"), ("pod-of-summer", "2026-09-20T00:00:00Z")):
        raw = json.loads(fleet_record(host, 20, SPREAD, gpus=1))
        raw.update(created_at=created_at, record_id=f"record-of-{host}")
        store.put(json.dumps(raw).encode())

    document = judged(flagbench, code=ExitCode.INCONCLUSIVE)

    assert names_of(document, "missing") == ["lost"]


def test_commands_are_printed_alone(
    store: Store, flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fleet(store, BY_NAME["one bit differs"])
    monkeypatch.setenv("HOME", str(tmp_path))
    junit, openmetrics = tmp_path / "new" / "fleet.xml", tmp_path / "fleet.prom"

    ended = flagbench("fleet --print slurm", "--junit=~/new/fleet.xml", f"--openmetrics={openmetrics}")

    assert ended.code == ExitCode.BELOW
    assert [line.split(" reason=")[0] for line in ended.out.splitlines()] == [
        "scontrol update nodename=gpu-001 state=drain"
    ]
    assert junit.read_bytes().startswith(b"<?xml")
    assert openmetrics.read_text().endswith("# EOF\n")


def test_the_table_has_a_line_for_each_node(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store, BY_NAME["5 % slow"])

    short, wide = flagbench("fleet"), flagbench("fleet --wide")

    assert _first_words(short.out) & {host_name(index) for index in range(NODES)} == {"gpu-001"}
    assert _first_words(wide.out) >= {host_name(index) for index in range(NODES)}


def _first_words(text: str) -> set[str]:
    words: Sequence[str] = [line.split()[0] for line in text.splitlines() if line.strip()]
    return set(words)


def test_what_is_no_record_of_a_node_hides_nothing(store: Store, flagbench: Flagbench) -> None:
    """A damaged record and one without the name of its node are noted, and one of several nodes is not."""
    put_fleet(store)
    folder = next(Path(store.url.removeprefix("file://")).rglob("*.json")).parent
    (folder / "20261101T000000Z-broken.json").write_text("{}")
    store.put(fleet_record("", 20, SPREAD, gpus=1))
    raw = json.loads(fleet_record("login", 21, SPREAD, gpus=1))
    raw["system"]["nodes"] = raw["config"]["nodes"] = 2
    store.put(json.dumps(raw).encode())

    document = judged(flagbench, code=ExitCode.OK)

    assert (len(document["nodes"]), len(document["notes"])) == (NODES, 2)


def test_a_run_of_another_case_on_one_device_is_no_reason_to_look(store: Store, flagbench: Flagbench) -> None:
    store.put(fleet_record("gpu-001", 0, SPREAD, gpus=8))
    raw = json.loads((ROOT / "docs" / "measured" / "h100-distilbert.json").read_text(encoding="utf-8"))
    raw["system"]["host"] = "gpu-001"
    store.put(json.dumps(raw).encode())

    document = judged(flagbench, "--since=2026-11-01", code=ExitCode.OK)

    assert names_of(document, "nothing") == ["gpu-001"]


def test_a_report_has_a_page_of_the_nodes(store: Store, flagbench: Flagbench, tmp_path: Path) -> None:
    put_fleet(store, BY_NAME["one bit differs"])

    assert flagbench(f"report --out {tmp_path}").code == ExitCode.OK

    page = (tmp_path / "nodes.html").read_text(encoding="utf-8")
    assert all(host_name(index) in page for index in range(NODES))
    assert 'href="nodes.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_report_of_few_nodes_has_no_such_page(store: Store, flagbench: Flagbench, tmp_path: Path) -> None:
    put_fleet(store, nodes=1)

    assert flagbench(f"report --out {tmp_path}").code == ExitCode.OK
    assert not (tmp_path / "nodes.html").exists()
    assert flagbench("fleet").out.startswith("1 node: nothing to do")


def test_a_record_that_cannot_be_judged_is_a_reason_to_look(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store, nodes=1)
    raw = json.loads(fleet_record("forged", 20, SPREAD, gpus=1))
    raw["config"]["gpus"] = 10**9
    store.put(json.dumps(raw).encode())

    document = judged(flagbench, code=ExitCode.INCONCLUSIVE)

    assert names_of(document, "look") == ["forged"]


@pytest.mark.parametrize("options", ["", "--case roofs"])
def test_a_store_without_records_is_an_error(store: Store, flagbench: Flagbench, options: str) -> None:
    ended = flagbench(f"fleet {options}")

    assert (ended.code, ended.out) == (ExitCode.DATA, "")


def test_nodes_are_not_missing_from_a_store_that_does_not_exist(flagbench: Flagbench, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu-001\n")

    ended = flagbench(f"fleet --store {tmp_path / 'mistyped'} --hosts {hosts}")

    assert (ended.code, ended.out) == (ExitCode.DATA, "")


def test_a_store_with_only_older_records_names_the_newest(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store, nodes=1)
    (record,) = store.list_records()
    assert record.summary is not None

    ended = flagbench("fleet --since 2026-11-27")

    assert (ended.code, ended.out) == (ExitCode.DATA, "")
    assert record.summary.created_at in ended.err


@pytest.mark.parametrize("options", ["--json --print kubectl", "--junit=nodes --openmetrics=./nodes"])
def test_options_that_contradict_each_other(store: Store, flagbench: Flagbench, options: str) -> None:
    assert flagbench(f"fleet {options}").code == ExitCode.USAGE


def test_a_newest_record_that_cannot_be_judged_is_missing_with_a_note(store: Store, flagbench: Flagbench) -> None:
    put_fleet(store)
    raw = json.loads(fleet_record("newer", 20, SPREAD, gpus=1))
    raw["case"] = "of-a-newer-version"
    store.put(json.dumps(raw).encode())

    document = judged(flagbench, code=ExitCode.INCONCLUSIVE)

    assert (names_of(document, "missing"), len(document["notes"])) == (["newer"], 1)
    assert "cannot be judged" in document["nodes"][0]["reason"]
