"""Making a lock: what is asked, what stays unresolved, what an earlier lock keeps.

tests/images/test_lock_for_real.py asks the real uv: of refusals, packages that do not go together, upgrades.
"""

import dataclasses

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import resolve as module
from flagbench.locks.files import is_stale
from flagbench.locks.model import LockEntry, Unresolved
from flagbench.locks.platforms import pip_platforms, uv_platform
from flagbench.locks.registry_login import RegistryError
from flagbench.locks.resolve import LockOptions, make_lock
from flagbench.locks.sources import Sources
from flagbench.locks.uv import Found, IndexUnreachable, NoSolution

A, B = ("sha256:" + digit * 64 for digit in "ab")
INDEX = "https://vendor.example/whl/cu118"
TABLES = {("flash-attn", "2.7.3"): ("torch", "einops"), ("torch", "2.6.0+cu118"): ("sympy==1.13.1",)}


@pytest.fixture
def stack(make_stack):
    return make_stack(indexes=(INDEX,))


class Index:
    """Has every package, of those in `offers` one version alone; `silent`: the stack's own index does not answer."""

    def __init__(self, offers=(), silent=False):
        self.offers = dict(offers)
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
        return [Found(name, version, (A,), wheel(name, version)) for name, version in sorted(pins.items())]


def wheel(name, version):
    """The names of the files of a package: one."""
    return (f"{name.replace('-', '_')}-{version}-py3-none-any.whl",)


@pytest.fixture
def made(stack, monkeypatch):
    """Makes a lock with packages from an index, and no registry."""

    def no_registry(image, ca_bundle):
        raise RegistryError("no network")

    monkeypatch.setattr(module, "base_digest", no_registry)
    monkeypatch.setattr(module, "refusing_indexes", lambda *_: {})

    def made(index, stack=stack, sources=(), tables=TABLES, **options):
        monkeypatch.setattr(module, "resolve", index)
        return make_lock(stack, LockOptions(Sources(sources, environ={}), tables, **options), lambda line: None)

    return made


def test_everything_is_found(made):
    index = Index()
    lock = made(index, base_digest=B)
    assert [entry.pin for entry in lock.entries] == ["flash-attn==2.7.3", "numpy==2.2.6", "torch==2.6.0+cu118"]
    assert (lock.unresolved, lock.base_digest) == ((), B)
    (request,) = index.asked
    assert request.python == "3.10"
    assert request.platform == "x86_64-manylinux_2_35"
    assert request.compiled == {"flash-attn"}
    # torch's own metadata is asked of its index; only what is compiled is declared.
    assert request.tables.keys() == {("flash-attn", "2.7.3")}


def test_an_index_out_of_reach_leaves_what_only_it_has_unresolved(made):
    index = Index({"torch": "2.6.0"}, silent=True)
    lock = made(index)
    assert lock.unresolved == (Unresolved("torch", "2.6.0+cu118", reason=f"{INDEX} could not be reached"),)
    assert [entry.name for entry in lock.entries] == ["flash-attn", "numpy", "sympy"]
    assert "torch" in index.asked[-1].absent
    assert made(Index(silent=True)).unresolved == (), "another index has the file"
    lock = made(Index({"torch": "2.6.0"}, silent=True), previous=made(Index()))
    assert LockEntry("torch", "2.6.0+cu118", (A,), wheel("torch", "2.6.0+cu118")) in lock.entries, "it was known"
    assert lock.unresolved == ()


@pytest.mark.parametrize(
    ("url", "sources"),
    [
        ("https://user:secret@index.example/simple/numpy/", ()),
        # A mirror instead of the stack's index, and an index whose URL only begins alike.
        ("https://user:secret@mirror.example/numpy/", ("https://pypi.example/s", "https://mirror.example")),
        (f"{INDEX}9/numpy/", ()),
    ],
)
def test_another_index_out_of_reach_is_an_error(url, sources, made):
    asked = []

    def dead(request, environment):
        asked.append(request)
        raise IndexUnreachable(url, "dns error")

    with pytest.raises(FlagbenchError) as caught:
        made(dead, sources=sources)
    assert len(asked) == 1
    assert "dns error" in caught.value.message
    assert caught.value.code is ExitCode.ENGINE
    assert "example" not in caught.value.message
    assert "secret" not in caught.value.message + caught.value.remedy


def test_an_index_without_hashes_leaves_its_packages_unresolved(made):
    lock = made(lambda *_: [Found("numpy", "2.2.6", (), ("n.whl",)), Found("einops", "1", (A,), ("e.whl",))])
    assert lock.unresolved == (Unresolved("numpy", "2.2.6", reason="its index states no sha256"),)
    assert [entry.name for entry in lock.entries] == ["einops"]


def test_a_compiled_package_without_a_table(made):
    with pytest.raises(FlagbenchError, match=r"flash-attn==2\.7\.3") as caught:
        made(Index(), tables={})
    assert "metadata.toml" in caught.value.remedy


@pytest.mark.parametrize("package", ["numpy>=2", "numpy", "n==2;x", "a==1\nb==2", "--pre==1", "n==2 --hash=x"])
def test_a_package_that_is_not_pinned(package, made, make_stack):
    with pytest.raises(FlagbenchError) as caught:
        made(Index(), stack=make_stack(packages=(package,)))
    assert repr(package) in caught.value.message


def test_the_base_is_asked_once_and_kept(made, stack, monkeypatch):
    monkeypatch.setattr(module, "base_digest", lambda image, ca: A)
    lock = made(Index())
    assert lock.base_digest == A
    monkeypatch.setattr(module, "base_digest", lambda image, ca: B)
    assert made(Index(), previous=lock).base_digest == A
    assert made(Index(), previous=lock, upgrade=True).base_digest == B
    stated = dataclasses.replace(stack, base_image=f"{stack.base_image}@{A}")
    lock = made(Index(), stack=stated)
    assert (lock.base_image, lock.base_digest) == (stack.base_image, A)
    assert is_stale(lock, stated) is None


def test_a_base_out_of_reach_stays_as_it_was(made, stack):
    assert made(Index()).base_digest is None
    known = made(Index(), base_digest=A)
    assert made(Index(), previous=known, upgrade=True).base_digest == A
    other = dataclasses.replace(stack, base_image="debian:13")
    assert made(Index(), stack=other, previous=known).base_digest is None


@pytest.mark.parametrize(("files", "known"), [(("numpy.whl",), True), (("a.whl", "b.whl"), False), ((), False)])
def test_a_hash_of_the_old_format_gets_the_name_of_the_only_file(files, known, made):
    """As long as the index lists one file; else nobody knows which it was."""
    earlier = dataclasses.replace(made(Index()), entries=(LockEntry("numpy", "2.2.6", (A,)),))
    lock = made(lambda *_: [Found("numpy", "2.2.6", (), files)], previous=earlier)
    assert lock.entries == ((LockEntry("numpy", "2.2.6", (A,), files),) if known else ())
    assert [entry.name for entry in lock.unresolved] == ([] if known else ["numpy"])


def test_platforms(stack):
    assert uv_platform(dataclasses.replace(stack, python="3.8")) == "x86_64-manylinux_2_31"
    assert uv_platform(dataclasses.replace(stack, platform="linux/arm64")) == "aarch64-manylinux_2_35"
    tags = pip_platforms(dataclasses.replace(stack, python="3.8"))
    assert tags[0] == "manylinux_2_31_x86_64"
    assert tags[-1] == "linux_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux1_x86_64"} <= set(tags)
    with pytest.raises(FlagbenchError, match="linux/s390x"):
        uv_platform(dataclasses.replace(stack, platform="linux/s390x"))
