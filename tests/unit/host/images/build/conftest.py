"""What the tests of building share: an engine in memory, and a catalog with a stack of one package."""

import hashlib
import io
import tarfile
from dataclasses import dataclass, field, replace

import pytest
import yaml

from flagbench.console.progress import Progress
from flagbench.images.build import ImageBuilder
from flagbench.images.build_options import BuildOptions
from flagbench.images.docker import BuildRequest, ImageInfo, Resources
from flagbench.images.docker_errors import BuildFailed
from flagbench.images.lockfile import Lock, Unresolved, inputs_digest, write_lock
from flagbench.images.render.image import find_target
from flagbench.manifests.load import build_stack, load_catalog
from flagbench.system import checkout
from flagbench_core.redaction import redact
from packages import lock_entry

BASE_ID = "sha256:" + "b" * 64
WHEEL = b"a wheel"
WHEEL_HASH = "sha256:" + hashlib.sha256(WHEEL).hexdigest()
WHEEL_NAME = "psutil-7.2.2-py3-none-any.whl"
LEFT_OUT = dict.fromkeys(("deepspeed", "flash-attn", "megatron-core"), "a stack of one package")


def image(image_id=BASE_ID, **changes):
    """An image as an engine describes it."""
    plain = ImageInfo(image_id, {}, (), (), "linux/amd64")
    return replace(plain, **changes)


@dataclass
class MemoryEngine:
    """An engine that keeps its images in a dictionary and says what it was asked."""

    images: dict[str, ImageInfo] = field(default_factory=lambda: {"debian:bookworm-slim": image()})
    requests: list[BuildRequest] = field(default_factory=list)
    contexts: list[dict[str, bytes]] = field(default_factory=list)
    pulled: list[str] = field(default_factory=list)
    registry: dict[str, ImageInfo] = field(default_factory=dict)
    says: str = "Collecting psutil\n"
    """What the client prints during a build."""
    failure: BaseException | None = None
    """What a build ends with instead of an image."""
    installs: int = 0
    """How often something was installed: no two times give the same layer."""
    machine: Resources = field(default_factory=lambda: Resources(cpus=64, memory=256 * 2**30))

    def inspect(self, ref):
        by_id = {known.id: known for known in self.images.values()}
        return self.images.get(ref) or by_id.get(ref)

    def pull(self, ref, *, platform=None, show=None):
        self.pulled.append(ref)
        if ref not in self.registry:
            raise BuildFailed(f"cannot pull {ref}", remedy="name another")
        self.images[ref] = self.registry[ref]
        return self.images[ref]

    def build(self, request, *, show=None):
        self.requests.append(request)
        with tarfile.open(fileobj=io.BytesIO(b"".join(request.context))) as tar:
            files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            self.contexts.append({name: file.read() for name, file in files.items() if file})
        if show is not None:
            show.write(redact(self.says, request.secrets))
        if self.failure is not None:
            raise self.failure
        layers = self._layers(request)
        made = "sha256:" + hashlib.sha256(repr((sorted(request.labels.items()), layers)).encode()).hexdigest()
        for tag in (*request.tags, made):
            self.images[tag] = image(made, labels=dict(request.labels), layers=layers)
        return self.images[made]

    def _layers(self, request):
        """Those of the stack's image and the code, or of what is installed this time."""
        if "STACK_IMAGE" in request.build_args:
            below = self.inspect(request.build_args["STACK_IMAGE"])
            assert below is not None
            return (*below.layers, "code")
        self.installs += 1
        return ("base", f"installed {self.installs}")

    def tag(self, ref, name):
        found = self.inspect(ref)
        assert found is not None
        self.images[name] = found

    def resources(self):
        return self.machine

    def close(self):
        pass


@pytest.fixture
def engine():
    """An engine that has the base of `mini`."""
    return MemoryEngine()


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """The user's folders are the test's, and neither a developer's options nor his commit reach it."""
    monkeypatch.setattr(checkout, "TOP", tmp_path / "no-checkout")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("BASE", "PIP_SOURCE", "APT_SOURCE", "CA_BUNDLE", "WHEELHOUSE"):
        monkeypatch.delenv(f"FLAGBENCH_{name}", raising=False)


@pytest.fixture
def mini_lock(manifests, monkeypatch):
    """Adds the stack `mini`, alias `small`, of psutil alone, and writes its lock; says how to write another."""
    plain = yaml.safe_load((manifests / "stacks" / "cpu.yaml").read_text(encoding="utf-8"))
    plain.update(name="mini", title="A stack of one package", aliases=["small"], expects={"psutil": "7.2.2"})
    plain["build"].update(packages=["psutil==7.2.2"], indexes=[], optional=[], left_out=LEFT_OUT)
    manifest = manifests / "stacks" / "mini.yaml"
    manifest.write_text(yaml.safe_dump(plain), encoding="utf-8")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    stack = build_stack(plain, manifest, {})

    def write(*, base_digest=None, hashes=(WHEEL_HASH,), unresolved=None):
        open_ends = () if unresolved is None else (Unresolved(unresolved, "1.0", reason="no index had it"),)
        entries = (lock_entry("psutil", "7.2.2", *hashes),)
        lock = Lock("mini", stack.python, stack.base_image, base_digest, inputs_digest(stack), entries, open_ends)
        write_lock(lock, manifests.parent / "images")
        return lock

    write()
    return write


@pytest.fixture
def mini(mini_lock, manifests):
    """The catalog with the stack `mini`."""
    return load_catalog(manifests)


@pytest.fixture
def build(mini, engine):
    """Builds an image on debian."""

    def build(name="distilbert:mini", catalog=mini, engine=engine, **options):
        chosen = BuildOptions(**{"base": "debian:bookworm-slim", **options})
        return ImageBuilder(catalog, chosen, engine, Progress()).build(find_target(name, catalog))

    return build


@pytest.fixture
def wheelhouse(tmp_path):
    """A folder with the one wheel that `mini` needs, and a file that it does not."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / WHEEL_NAME).write_bytes(WHEEL)
    (folder / "notes.txt").write_text("not for the build", encoding="utf-8")
    return folder
