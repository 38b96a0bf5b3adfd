"""`flagbench list` shows what there is, to a person and to a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, process


def test_tables_are_aligned_where_there_is_no_terminal(flagbench: Flagbench) -> None:
    text = flagbench("list").out
    titles = [line for line in text.splitlines() if " " not in line]
    assert titles == ["cases", "", "stacks", "", "devices", "", "claims"]
    assert "\x1b" not in text
    header, *rows = flagbench("list claims").out.splitlines()
    assert [header, *rows] == text.splitlines()[-len(rows) - 1 :]
    column = header.index("PUBLISHED")
    assert rows[0].startswith("aquila-33b/a100-1x8-tp8 ")
    first = [row[column:] for row in rows if row.startswith("distilbert/")][:2]
    assert first == ["1942.6 samples/s, p_core", "2181.0 samples/s, p_core"]
    k100 = next(row for row in rows if row.startswith("glm/k100-1x8-fp16-bs8 "))
    assert k100[column:] == "no p_core, only acc, mem_peak"
    assert k100[:column].split()[-1] == "none"


def test_stacks_say_what_they_run_and_how_they_get_a_base(flagbench: Flagbench) -> None:
    rows = {line.split()[0]: line for line in flagbench("list stacks").out.splitlines()}
    assert rows["cpu"].endswith("debian:bookworm-slim")
    assert "all 11 cases" in rows["cpu"]
    assert "--base" in rows["c500-maca2.18"]
    assert rows["rocm"].endswith("no image: runs natively")


def test_json_has_the_kinds_asked_for(flagbench: Flagbench) -> None:
    everything = flagbench("list --json").json
    assert list(everything) == ["cases", "stacks", "devices", "claims"]
    claim = next(claim for claim in everything["claims"] if claim["id"] == "distilbert/a100-1x8-fp32")
    assert claim["metrics"][3] == {
        "name": "p_core",
        "value": 1942.6,
        "unit": "samples/s",
        "scope": "job",
        "of": None,
        "printed": None,
        "source": None,
    }
    by_id = {claim["id"]: claim for claim in everything["claims"]}
    assert by_id["glm/a100-2x8-fp32-bs8"]["metrics"][0]["source"]["commit"] == "269c1fd5"
    r300 = by_id["glm/r300-1x8-fp32-bs5"]
    assert (r300["stack"], r300["metrics"][0]["printed"]) == (None, "80.52%")
    assert "no stack for Kunlunxin's R300" in r300["no_stack"]
    c500 = [claim for claim in everything["claims"] if claim["id"].startswith("llama2-70b/c500-")]
    assert [claim["aligned"] for claim in c500] == [None, True]
    h100 = next(device for device in everything["devices"] if device["id"] == "h100-sxm")
    assert (h100["peaks"]["tf32"]["flops"], h100["limits"]["power_watts"]["value"]) == (494.7e12, 700)
    assert flagbench("list stacks --json").json == {"stacks": everything["stacks"]}


# libyaml's parser recurses in C, and would end the process.
@pytest.mark.parametrize("content", [None, "schema: case/v1\n", "{a: " * 100_000], ids=["pipe", "incomplete", "deep"])
def test_a_broken_manifest_is_named(manifests: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    path = manifests / "cases" / "broken.yaml"
    os.mkfifo(path) if content is None else path.write_text(content)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    done = process("-m", "flagbench", "list")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "cases/broken.yaml" in done.stderr


def test_compiled_manifests_are_checked(
    flagbench: Flagbench, manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    outside = flagbench("manifests compile")
    assert (outside.code, "is not in a checkout" in outside.err) == (ExitCode.USAGE, True)
    package = manifests.parent / "entrypoints" / "flagbench_cases"
    package.mkdir(parents=True)
    case, gone = "cases/distilbert/case.json", "shared/stacks/gone.json"
    assert case in flagbench("manifests compile --json").json["changed"]
    assert flagbench("manifests compile --check").code == 0
    (package / gone).write_text("{}")
    (package / case).write_text("{}")
    stale = flagbench("manifests compile --check")
    assert (stale.code, f"stale: {case}, {gone}\n" in stale.err) == (ExitCode.USAGE, True)
    assert flagbench("manifests compile --json").json["changed"] == [case, gone]
    assert flagbench("manifests compile --check").code == 0
    assert not (package / gone).exists()
