"""What cannot fit the disk or the lock is refused before anything is pulled or built."""

from dataclasses import replace

import pytest

from flagbench.errors import ExitCode, FlagbenchError

DIGEST = "sha256:" + "d" * 64
LOCKED = f"debian:bookworm-slim@{DIGEST}"


def test_a_base_that_is_here_takes_no_more_space(build, engine):
    engine.images["debian:bookworm-slim"] = replace(engine.images["debian:bookworm-slim"], size=40_000_000_000)
    engine.free = 1_000_000_000
    assert not build().top.skipped


@pytest.mark.parametrize(
    ("digest", "base"), [(None, "debian:bookworm-slim"), (None, "vendor/base:1"), (DIGEST, None)]
)
def test_nothing_is_pulled_if_the_packages_do_not_fit(digest, base, build, engine, mini_lock):
    mini_lock(base_digest=digest)
    engine.registry[base or LOCKED] = engine.images["debian:bookworm-slim"]
    engine.free = 50_000_000
    with pytest.raises(FlagbenchError, match=r"0\.1 GB") as refused:
        build(base=base)
    assert refused.value.code is ExitCode.BUILD_FAILED
    assert (engine.pulled, engine.requests) == ([], [])


def test_a_base_that_took_the_rest_of_the_disk_is_the_end(build, engine, mini_lock, monkeypatch):
    mini_lock(base_digest=DIGEST)
    engine.registry[LOCKED] = engine.images["debian:bookworm-slim"]
    monkeypatch.setattr(engine, "free_bytes", lambda: 50_000_000 if engine.pulled else 1_000_000_000)
    with pytest.raises(FlagbenchError) as refused:
        build(base=None)
    assert refused.value.code is ExitCode.BUILD_FAILED
    assert (engine.pulled, engine.requests) == ([LOCKED], [])


def test_a_locked_base_that_is_here_is_not_pulled(build, engine, mini_lock):
    mini_lock(base_digest=DIGEST)
    engine.images[LOCKED] = engine.images["debian:bookworm-slim"]
    build(base=None)
    assert engine.pulled == []


def test_another_platform_is_refused_first(build, engine):
    with pytest.raises(FlagbenchError, match="--platform is linux/arm64, and the stack mini") as refused:
        build(platform="linux/arm64")
    assert refused.value.code is ExitCode.USAGE
    assert (engine.requests, engine.pulled) == ([], [])


def test_a_variant_of_the_platform_is_the_platform(build, engine, monkeypatch):
    pulled = []
    debian = engine.images["debian:bookworm-slim"]
    monkeypatch.setattr(engine, "pull", lambda ref, platform, show: pulled.append((ref, platform)) or debian)
    build(base="vendor/base:1", platform="linux/amd64/v3")
    assert pulled == [("vendor/base:1", "linux/amd64/v3")]
    assert {request.platform for request in engine.requests} == {"linux/amd64/v3"}
