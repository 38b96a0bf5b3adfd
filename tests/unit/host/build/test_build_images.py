"""Building with an engine in memory: tiers, tags, labels, failures, and one process at a time."""

import re
from contextlib import ExitStack
from email import message_from_string

import pytest

from flagbench.build.builder import Builder, build_images, find_target
from flagbench.build.options import BuildOptions
from flagbench.build.progress import Progress
from flagbench.catalog.lookup import UnknownNameError
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.user_lock import user_lock


def test_an_image_has_two_tiers_with_their_tags(build, engine, capsys):
    heavy, thin = build().tiers
    short = heavy.digest.removeprefix("sha256:")[:12]
    assert heavy.tags == (
        "flagbench/stack:mini",
        "flagbench/stack:mini-0.1.0",
        f"localhost/flagbench/stack:mini-{short}",
    )
    assert thin.tags == ("flagbench/distilbert:mini", "flagbench/distilbert:mini-0.1.0", "flagbench/distilbert:small")
    assert engine.requests[1].build_args["STACK_IMAGE"] == heavy.tags[2]
    assert engine.requests[0].build_args == {"BASE": "debian:bookworm-slim"}
    said = capsys.readouterr().err
    assert "building stack/mini" in said
    assert engine.says in said
    assert re.search(rf"flagbench/stack:mini built in \d+\.\ds; also {heavy.tags[1]}, ", said)


def test_labels_say_what_an_image_was_made_from(build, engine):
    result = build()
    heavy, thin = engine.requests
    assert thin.labels["dev.flagbench.context"] == result.top.digest == thin.build_args["FLAGBENCH_CONTEXT_DIGEST"]
    assert thin.labels["dev.flagbench.lock"] == result.lock.digest
    assert thin.labels["dev.flagbench.base"] == result.base.identity
    assert thin.labels["org.opencontainers.image.base.digest"] == "", "no registry has it"
    assert (thin.labels["dev.flagbench.case"], thin.labels["dev.flagbench.stack"]) == ("distilbert", "mini")
    assert thin.labels["org.opencontainers.image.created"].endswith("Z")
    assert "dev.flagbench.case" not in heavy.labels


def test_labels_name_the_project(build, engine, monkeypatch):
    urls = "Project-URL: Source, https://code.example/f\nProject-URL: Homepage, https://f.example"
    monkeypatch.setattr("flagbench.build.tiers.metadata", lambda name: message_from_string(urls))
    build()
    for labels in (request.labels for request in engine.requests):
        assert labels["org.opencontainers.image.source"] == "https://code.example/f"
        assert labels["org.opencontainers.image.url"] == "https://f.example"
        assert labels["org.opencontainers.image.documentation"] == "", "the base's own does not stay"


def test_credentials_are_neither_shown_nor_kept(build, engine, capsys):
    engine.says = "Looking in indexes: https://user:planted@mirror.example/simple as planted\n"
    build(pip_source=("https://user:planted@mirror.example/simple",))
    said = capsys.readouterr().err
    assert "https://***@mirror.example/simple" in said
    assert "planted" not in said
    assert b"planted" in engine.contexts[0]["inputs/pip.conf"]
    request = engine.requests[0]
    assert "planted" not in repr((request.build_args, request.labels, request.tags))


@pytest.mark.parametrize(
    ("fault", "code"),
    [({"failure": KeyboardInterrupt()}, ExitCode.INTERRUPTED), ({"forgets_labels": True}, ExitCode.BUILD_FAILED)],
)
def test_an_interrupted_build_and_labels_that_did_not_arrive(fault, code, build, engine):
    vars(engine).update(fault)
    with pytest.raises(FlagbenchError) as failed:
        build()
    assert failed.value.code is code


def test_every_name_is_looked_up_before_the_first_is_built(mini, engine):
    with pytest.raises(UnknownNameError):
        list(build_images(["distilbert:mini", "nothing"], mini, BuildOptions(), engine, Progress()))
    assert engine.requests == []


def test_a_stack_is_built_once_even_without_the_cache(mini, engine):
    options = BuildOptions(base="debian:bookworm-slim", no_cache=True)
    builder = Builder(mini, options, engine, Progress())
    builder.build(find_target("mini", mini))
    builder.build(find_target("distilbert:mini", mini))
    assert [request.tags[0] for request in engine.requests] == ["flagbench/stack:mini", "flagbench/distilbert:mini"]
    assert all(request.no_cache for request in engine.requests)


def test_who_builds_the_same_image_waits_and_says_so():
    """The locks are of open files, so one process meets its own as another's."""
    waited = []
    with ExitStack() as holder:

        def waiting():
            waited.append("waiting")
            holder.close()

        holder.enter_context(user_lock("building", "stack/mini", lambda: waited.append("wrong")))
        with user_lock("building", "stack/other", lambda: waited.append("wrong")):
            pass
        with user_lock("building", "stack/mini", waiting):
            pass
    assert waited == ["waiting"]


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(FlagbenchError, match=str(tmp_path / "file")),
        user_lock("building", "stack/mini", lambda: None),
    ):
        pass
