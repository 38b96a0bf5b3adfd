"""Making a lock: what is asked, what stays unresolved, what an earlier lock keeps."""

import dataclasses

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import LockEntry, Unresolved, is_stale
from flagbench.locks import resolve as module
from flagbench.locks.metadata import Table
from flagbench.locks.platforms import pip_platforms, uv_platform
from flagbench.locks.registry import RegistryError
from flagbench.locks.resolve import LockOptions, make_lock
from flagbench.locks.sources import Sources
from flagbench.locks.uv import Found, IndexUnreachable, NoSolution

A, B = ("sha256:" + digit * 64 for digit in "ab")
INDEX = "https://vendor.example/whl/cu118"
TABLES = {
    ("flash-attn", "2.7.3"): Table("flash-attn", "2.7.3", ("torch", "einops")),
    ("torch", "2.6.0+cu118"): Table("torch", "2.6.0+cu118", ("sympy==1.13.1",)),
}
SAID: list = []


@pytest.fixture
def stack():
    stack = load_catalog().stacks["a100-cuda11.8"]
    compiled = tuple(package for package in stack.build.compiled if package.name == "flash-attn")
    packages = ("torch==2.6.0+cu118", "numpy==2.2.6")
    build = dataclasses.replace(stack.build, packages=packages, optional=(), compiled=compiled, indexes=(INDEX,))
    return dataclasses.replace(stack, build=build)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    SAID.clear()
    monkeypatch.setattr(module, "pip_configuration", lambda _: {})

    def unreachable(image, ca_bundle):
        raise RegistryError("no network")

    monkeypatch.setattr(module, "base_digest", unreachable)
    monkeypatch.setattr(module, "refusing_indexes", lambda *_: {})


class Index:
    """A package world: every answer is decided by what is offered; every question is kept."""

    def __init__(self, offers, silent=False):
        self.offers = offers
        self.silent = silent
        self.asked = []

    def __call__(self, request, environment):
        self.asked.append(request)
        if self.silent and INDEX in environment.get("UV_INDEX", ""):
            raise IndexUnreachable(f"{INDEX}/numpy/", "dns error")
        pins = dict(line.split("==") for line in request.requirements)
        for name, version in pins.items():
            if self.offers.get(name, version) != version:
                raise NoSolution(f"no {name}", frozenset({f"{name}=={version}"}))
        more = {n: v for n, v in request.kept.items() if self.offers.get(n, v) != v}
        if more:
            raise NoSolution("constraints", frozenset())
        return [Found(name, version, (A,), wheel(name, version)) for name, version in sorted(pins.items())]


def wheel(name, version):
    """The names of the files of a package: one."""
    return (f"{name.replace('-', '_')}-{version}-py3-none-any.whl",)


def made(stack, index, **options):
    options.setdefault("sources", Sources(environ={}))
    options.setdefault("tables", TABLES)
    return make_lock(stack, LockOptions(**options), SAID.append, index)


def test_everything_is_found(stack):
    index = Index({})
    lock = made(stack, index, base_digest=B)
    assert [entry.pin for entry in lock.entries] == ["flash-attn==2.7.3", "numpy==2.2.6", "torch==2.6.0+cu118"]
    assert (lock.unresolved, lock.base_digest) == ((), B)
    (request,) = index.asked
    assert request.python == "3.10"
    assert request.platform == "x86_64-manylinux_2_35"
    assert request.compiled == {"flash-attn"}
    # torch's own metadata is asked of its index; only what is compiled is declared.
    assert [table.name for table in request.tables] == ["flash-attn"]


def test_an_index_out_of_reach_leaves_what_only_it_has_unresolved(stack):
    index = Index({"torch": "2.6.0"}, silent=True)
    lock = made(stack, index)
    assert lock.unresolved == (Unresolved("torch", "2.6.0+cu118", reason=f"{INDEX} could not be reached"),)
    assert [entry.name for entry in lock.entries] == ["flash-attn", "numpy", "sympy"]
    assert "torch" in index.asked[-1].absent
    assert any("torch==2.6.0+cu118 stays unresolved" in line for line in SAID)


def test_an_index_out_of_reach_does_not_matter_where_another_has_the_file(stack):
    lock = made(stack, Index({}, silent=True))
    assert lock.unresolved == ()


def test_what_an_unresolved_package_needs_may_not_be_known_either(stack):
    tables = {key: table for key, table in TABLES.items() if key[0] != "torch"}
    (entry,) = made(stack, Index({"torch": "2.6.0"}, silent=True), tables=tables).unresolved
    assert entry.reason == f"{INDEX} could not be reached; what it needs in turn is not known"


def test_a_hash_that_was_known_is_kept_when_the_index_is_out_of_reach(stack):
    earlier = made(stack, Index({}))
    lock = made(stack, Index({"torch": "2.6.0"}, silent=True), previous=earlier)
    assert LockEntry("torch", "2.6.0+cu118", (A,), wheel("torch", "2.6.0+cu118")) in lock.entries
    assert lock.unresolved == ()


def test_a_package_that_does_not_exist_is_an_error(stack):
    with pytest.raises(FlagbenchError) as caught:
        made(stack, Index({"numpy": "1.0"}))
    assert stack.name in str(caught.value)
    assert str(stack.path) in caught.value.remedy


def test_the_default_index_out_of_reach_is_an_error(stack):
    def dead(request, environment):
        raise IndexUnreachable("https://user:secret@index.example/simple/numpy/", "dns error")

    with pytest.raises(FlagbenchError) as caught:
        made(stack, dead)
    assert "dns error" in str(caught.value)
    assert caught.value.code is ExitCode.ENGINE
    assert "secret" not in caught.value.message + caught.value.remedy


def test_an_index_of_the_manifest_that_refuses_does_not_answer(stack, monkeypatch):
    def refuses(stack, environment, ca_bundle):
        return dict.fromkeys(environment.get("UV_INDEX", "").split(), 403)

    monkeypatch.setattr(module, "refusing_indexes", refuses)
    lock = made(stack, Index({"torch": "2.6.0"}))
    assert lock.unresolved == (Unresolved("torch", "2.6.0+cu118", reason=f"{INDEX} refused (HTTP 403)"),)


def test_an_index_of_a_person_that_refuses_is_an_error(stack, monkeypatch):
    monkeypatch.setattr(module, "refusing_indexes", lambda *_: {"https://user:secret@index.example/simple": 401})
    with pytest.raises(FlagbenchError) as caught:
        made(stack, Index({"numpy": "1.0"}))
    assert "HTTP 401" in str(caught.value)
    assert caught.value.code is ExitCode.ENGINE
    assert "netrc" in caught.value.remedy
    assert "index.example" not in caught.value.message + caught.value.remedy


def test_a_mirror_that_stands_for_the_stacks_index_is_named_nowhere(stack):
    mirror = "https://mirror.example/cu118"

    def dead(request, environment):
        assert environment["UV_INDEX"] == mirror
        raise IndexUnreachable(f"{mirror}/numpy/", "dns error")

    with pytest.raises(FlagbenchError) as caught:
        made(stack, dead, sources=Sources(("https://pypi.example/simple", mirror), None, {}))
    assert "dns error" in str(caught.value)
    assert "mirror.example" not in caught.value.message


def test_an_index_whose_name_only_begins_alike_is_another_one(stack):
    def dead(request, environment):
        raise IndexUnreachable(f"{INDEX}9/numpy/", "dns error")

    with pytest.raises(FlagbenchError) as caught:
        made(stack, dead)
    assert "dns error" in str(caught.value)


def test_an_index_without_hashes_leaves_its_packages_unresolved(stack):
    def hashless(request, environment):
        return [
            Found("numpy", "2.2.6", (), wheel("numpy", "2.2.6")),
            Found("einops", "1", (A,), wheel("einops", "1")),
        ]

    lock = made(stack, hashless)
    assert lock.unresolved == (Unresolved("numpy", "2.2.6", reason="its index states no sha256"),)
    assert [entry.name for entry in lock.entries] == ["einops"]


def test_versions_of_an_earlier_lock_are_kept(stack):
    earlier = dataclasses.replace(
        made(stack, Index({})), entries=(LockEntry("einops", "0.8.1", (A,), wheel("einops", "0.8.1")),)
    )
    index = Index({})
    made(stack, index, previous=earlier)
    assert index.asked[0].kept == {"einops": "0.8.1"}
    upgraded = Index({})
    made(stack, upgraded, previous=earlier, upgrade=True)
    assert upgraded.asked[0].kept == {}


def test_versions_that_do_not_fit_any_more_are_let_go(stack):
    earlier = dataclasses.replace(
        made(stack, Index({})), entries=(LockEntry("einops", "0.8.1", (A,), wheel("einops", "0.8.1")),)
    )
    index = Index({"einops": "0.9"})
    made(stack, index, previous=earlier)
    assert [request.kept for request in index.asked] == [{"einops": "0.8.1"}, {}]
    assert any("no longer fit" in line for line in SAID)


def test_a_compiled_package_without_a_table(stack):
    with pytest.raises(FlagbenchError) as caught:
        made(stack, Index({}), tables={})
    assert "flash-attn==2.7.3" in str(caught.value)
    assert "metadata.toml" in caught.value.remedy


@pytest.mark.parametrize("package", ["numpy>=2", "numpy", "n==2;x", "a==1\nb==2", "--pre==1", "n==2 --hash=x"])
def test_a_package_that_is_not_pinned(stack, package):
    build = dataclasses.replace(stack.build, packages=(package,))
    with pytest.raises(FlagbenchError) as caught:
        made(dataclasses.replace(stack, build=build), Index({}))
    assert repr(package) in str(caught.value)


def test_the_bases_packages_are_never_asked_for(stack):
    build = dataclasses.replace(stack.build, from_base=("torch", "Flash_Attn"), packages=("numpy==2.2.6",))
    index = Index({})
    made(dataclasses.replace(stack, build=build), index)
    assert index.asked[0].absent == {"torch", "flash-attn"}


def test_the_base_is_asked_once_and_kept(stack, monkeypatch):
    monkeypatch.setattr(module, "base_digest", lambda image, ca: A)
    lock = made(stack, Index({}))
    assert lock.base_digest == A
    monkeypatch.setattr(module, "base_digest", lambda image, ca: B)
    assert made(stack, Index({}), previous=lock).base_digest == A
    assert made(stack, Index({}), previous=lock, upgrade=True).base_digest == B


def test_a_base_with_a_digest_in_the_manifest_is_not_asked_for(stack, monkeypatch):
    monkeypatch.setattr(module, "base_digest", lambda image, ca: B)
    pinned = dataclasses.replace(stack, base_image=f"{stack.base_image}@{A}")
    lock = made(pinned, Index({}))
    assert (lock.base_image, lock.base_digest) == (stack.base_image, A)
    assert is_stale(lock, pinned) is None


def test_a_hash_of_the_old_format_gets_the_name_of_the_only_file(stack):
    """As long as the index lists one file; else nobody knows which it was."""
    earlier = dataclasses.replace(made(stack, Index({})), entries=(LockEntry("numpy", "2.2.6", (A,)),))
    for files, known in ((("numpy-2.2.6-py3-none-any.whl",), True), (("a.whl", "b.whl"), False), ((), False)):
        lock = made(stack, lambda *_, files=files: [Found("numpy", "2.2.6", (), files)], previous=earlier)
        assert lock.entries == ((LockEntry("numpy", "2.2.6", (A,), files),) if known else ())
        assert [entry.name for entry in lock.unresolved] == ([] if known else ["numpy"])


def test_a_base_out_of_reach_stays_as_it_was(stack):
    known = made(stack, Index({}), base_digest=A)
    assert made(stack, Index({}), previous=known, upgrade=True).base_digest == A
    assert made(stack, Index({})).base_digest is None


def test_another_base_does_not_inherit_the_digest(stack):
    known = made(stack, Index({}), base_digest=A)
    other = dataclasses.replace(stack, base_image="debian:13")
    assert made(other, Index({}), previous=known).base_digest is None


def test_platforms(stack):
    assert uv_platform(dataclasses.replace(stack, python="3.8")) == "x86_64-manylinux_2_31"
    assert uv_platform(dataclasses.replace(stack, platform="linux/arm64")) == "aarch64-manylinux_2_35"
    tags = pip_platforms(dataclasses.replace(stack, python="3.8"))
    assert tags[0] == "manylinux_2_31_x86_64"
    assert tags[-1] == "linux_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux1_x86_64"} <= set(tags)
    with pytest.raises(FlagbenchError) as caught:
        uv_platform(dataclasses.replace(stack, platform="linux/s390x"))
    assert "linux/s390x" in str(caught.value)
