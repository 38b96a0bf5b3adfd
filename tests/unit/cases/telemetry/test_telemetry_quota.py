"""How many processors a control group may use, from recorded files of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_cases.telemetry.quota import Quota

pytestmark = pytest.mark.image

V2 = {"cpu.max": "150000 100000\n", "cpu.stat": "usage_usec 1\nnr_periods 30\nnr_throttled 12\nthrottled_usec 4\n"}
V1 = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000", "cpu.stat": "nr_periods 7\nnr_throttled 3\n"}


def machine(root: Path, group: str, folders: dict[str, dict[str, str]]) -> Quota:
    """The quota of process 10, which is of a group, on a machine with these files."""
    (root / "proc" / "10").mkdir(parents=True)
    (root / "proc" / "10" / "cgroup").write_text(group)
    for folder, files in folders.items():
        place = root / "sys" / "fs" / "cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(text)
    return Quota(10, proc=str(root / "proc"), sys=str(root / "sys"))


@pytest.mark.parametrize(
    ("group", "folders", "found"),
    [
        ("0::/user.slice/job\n", {"user.slice/job": V2}, {"quota": 1.5, "throttled": [30, 12]}),
        ("0::/\n", {".": V2}, {"quota": 1.5, "throttled": [30, 12]}),  # in a container with a namespace of its own
        # The group above allows less.
        (
            "0::/a/b\n",
            {"a": {**V2, "cpu.max": "20000 100000"}, "a/b": {"cpu.max": "max 100000\n"}},
            {"quota": 0.2, "throttled": [30, 12]},
        ),
        ("5:cpu,cpuacct:/job\n0::/\n", {"cpu,cpuacct/job": V1}, {"quota": 0.5, "throttled": [7, 3]}),
        # In a container without one, the path is that of the machine, and the files are the container's.
        ("5:cpu:/docker/abc\n", {"cpu": V1}, {"quota": 0.5, "throttled": [7, 3]}),
        ("5:cpu:/\n0::/\n", {"cpu": {**V1, "cpu.cfs_quota_us": "-1"}}, {}),
        ("0::/\n", {".": {"cpu.max": "max 100000\n"}}, {}),
        ("0::/\n", {".": {"cpu.max": "100000 100000\n"}}, {"quota": 1.0}),  # without counts
        ("nonsense\n", {}, {}),
        ("", {}, {}),
    ],
)
def test_the_quota_of_a_group(
    tmp_path: Path, group: str, folders: dict[str, dict[str, str]], found: dict[str, object]
) -> None:
    assert machine(tmp_path, group, folders).sample() == found
