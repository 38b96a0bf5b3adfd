"""The list of nodes that should have answered, as schedulers print it."""

from __future__ import annotations

import pytest

from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import match_hosts, parse_hosts
from flagbench_core.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu-001\ngpu-002\n", ("gpu-001", "gpu-002")),
        ("gpu-001\ngpu-001\n\n gpu-002 ", ("gpu-001", "gpu-002")),  # sinfo lists a node once for each partition
        ("node/gpu-001\nnode/gpu-002\n", ("gpu-001", "gpu-002")),  # kubectl get nodes -o name
    ],
)
def test_a_list_has_a_name_a_line(text: str, hosts: tuple[str, ...]) -> None:
    assert parse_hosts(text, "--hosts") == hosts


@pytest.mark.parametrize("text", ["", "\n", "gpu-[001-064]", "gpu-001,gpu-002", "NAME STATUS\ngpu-001 Ready"])
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        parse_hosts(text, "--hosts")
    assert caught.value.code is ExitCode.USAGE


def test_a_domain_is_cut_where_that_alone_matches() -> None:
    assert match_hosts(["a.cluster", "b"], ["a", "b.cluster"]) == {"a": "a.cluster", "b.cluster": "b"}


def test_the_same_name_in_two_domains_is_two_nodes() -> None:
    assert match_hosts(["a.east", "a.west"], ["a"]) == {}
    assert match_hosts(["a"], ["a.east", "a.west"]) == {}
    assert match_hosts(["a.east"], ["a.west"]) == {}
    assert match_hosts(["a", "a.east"], ["a.east"]) == {"a.east": "a.east"}
