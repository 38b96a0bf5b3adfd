"""The network between nodes, as NCCL's own log says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench_cases.rank.rank_group import keep_nccl_log, read_nccl_networks
from flagbench_cases.shared.spool import RankSpool, path_of

pytestmark = pytest.mark.image

LOG = """node-1:987:1260 [7] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node-1:987:1260 [7] NCCL INFO Using network {0}
node-1:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/{0}/2
node-1:987:1260 [7] NCCL INFO Using network {0}
"""


@pytest.mark.parametrize("name", ["IB", "Socket", "AWS Libfabric"])
def test_the_network_is_read_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(variable, "")  # so that it is restored
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")  # as in images and profiles of clusters
    spool = RankSpool(str(tmp_path), 15)
    keep_nccl_log(spool)
    file = os.environ["NCCL_DEBUG_FILE"]
    assert (file, os.environ["NCCL_DEBUG"]) == (path_of(str(tmp_path), 15, "nccl"), "INFO")
    assert read_nccl_networks(spool) == []
    Path(file).write_text(LOG.format(name), encoding="utf-8")
    assert read_nccl_networks(spool) == [name]


def test_a_log_that_the_user_asked_for_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    keep_nccl_log(RankSpool(str(tmp_path), 0))
    assert "NCCL_DEBUG_FILE" not in os.environ
