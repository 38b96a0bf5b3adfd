"""Every vendor's image, really built on a stand-in base and run; and what a build makes of a wrong base.

`flagbench` is used as a person would, by its command. What is built stays with the engine, so that a second run of
these tests finds it up to date: every image of theirs has `standin` in its name.
"""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from catalogs import CATALOG
from flagbench.images.docker import BuildRequest
from flagbench.images.lockfile import inputs_digest, read_lock, write_lock
from flagbench.images.render.directory import context_tar, make_build_directory
from flagbench.images.render.image import ImageRenderer
from flagbench.manifests.load import load_catalog
from packages import lock_entry, make_wheel
from running import need
from standins.bases import bases, ensure
from standins.overlays import (
    CHANGES,
    PREFIX,
    ROOT,
    fill_wheelhouse,
    make_catalog,
    overlay,
    real_manifest,
    write_manifest,
)

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

SHORT = ["--nodes", "1", "--gpus", "1", "--preset", "tiny", "--data", "synthetic", "--steps", "5"]
SPLIT = ["--nodes", "1", "--gpus", "2", *SHORT[4:]]
WITHOUT_RECORD = """
import json, yaml
from importlib import metadata
versions = [found.version for found in metadata.distributions(name="pyyaml")]
print(json.dumps([yaml.__version__, versions]))
"""
SHOW_TOOLKIT = """
bin/nvcc --version | grep release
readlink include && ls include
ls lib64/ && readlink lib64/libcudart.so
"""
STATIC = ["libcudadevrt.a", "libcudart.so", "libcudart_static.a"]
TORCH_OF = "import json, torch; print(json.dumps([torch.__version__, torch.__file__]))"


class Builds:
    """`flagbench` on a catalog of test-only stacks, offline: packages come from a wheelhouse."""

    def __init__(self, folder, wheelhouse):
        self.folder = folder
        self.manifests = make_catalog(folder)
        self.images = folder / "images"
        path = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
        # Options of the person who runs the tests are for the real stacks.
        own = {name: value for name, value in os.environ.items() if not name.startswith("FLAGBENCH_")}
        self.environment = dict(own, PYTHONPATH=path, NO_COLOR="1", XDG_DATA_HOME=str(folder / "data"))
        self.environment.update(FLAGBENCH_MANIFESTS=str(self.manifests), FLAGBENCH_WHEELHOUSE=str(wheelhouse))

    def flagbench(self, *arguments, code=0):
        """Run a command; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "flagbench", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == code, "exit %d\n%s%s" % (done.returncode, done.stdout, done.stderr)
        return done

    def build(self, image, *options):
        """`flagbench build IMAGE`; what it says of the image."""
        return json.loads(self.flagbench("build", image, "--json", *options).stdout)["images"][0]

    def stack(self, name):
        """A stack of the catalog as it is now."""
        return load_catalog(self.manifests).stacks[name]


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """The packages of every overlay: what FLAGBENCH_WHEELHOUSE names, else fetched."""
    if named := os.environ.get("FLAGBENCH_WHEELHOUSE"):
        return Path(named)
    folder = tmp_path_factory.mktemp("wheelhouse")
    fill_wheelhouse(folder)
    return folder


@pytest.fixture(scope="module")
def builds(tmp_path_factory, wheelhouse):
    return Builds(tmp_path_factory.mktemp("standins"), wheelhouse)


@pytest.fixture(scope="module")
def base(docker_engine, debian):
    """`base(NAME)`: the reference of a stand-in, built where it is not there."""
    need(sys.version_info[:2] == (3, 11), "Python 3.11, which Debian 12 has too")
    python38 = os.environ.get("FLAGBENCH_STANDIN_PYTHON38") or os.path.join(ROOT, ".venv-3.8", "bin", "python")
    need(os.path.exists(python38), "Python 3.8 with torch 1.12.1 at %s (FLAGBENCH_STANDIN_PYTHON38)" % python38)
    serving = Path(sys.prefix, "serving")
    every = bases(python38, sys.executable, serving)

    def base(name):
        need(name != "vllm" or serving.is_dir(), "vLLM (`make .venv/.serving`)")
        return debian if name == "debian" else ensure(name, every, docker_engine)

    return base


def case_of(stack):
    """The case whose image is built: DistilBERT, or the only one that the stack runs."""
    cases = CATALOG.stacks[stack].runs
    return "distilbert" if "distilbert" in cases else cases[0]


@pytest.mark.parametrize("stack", CHANGES)
def test_a_vendor_s_image_is_built_on_its_stand_in_and_runs(stack, builds, base, docker_client, start, record_schema):
    """Offline, as a user that the image does not know; torch is the base's where the base has one."""
    below, name = base(CHANGES[stack].base), PREFIX + stack
    image = "%s:%s" % (case_of(stack), name)
    told = builds.build(image, "--base", below)
    options = [*SHORT]
    if CATALOG.cases[case_of(stack)].imports == ("vllm",):
        # On a processor vLLM compiles its sampling against torch's headers, which a stand-in lacks.
        options += ["--set", "temperature=0"]
    run = start(*options, image="flagbench/%s" % image, network_mode="none", user="4242:4242")
    assert run.wait() == 0, run.stderr
    record = run.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (record["status"]["state"], record["stack"]) == ("ok", name)
    assert record["system"]["image"]["context_digest"] == told["context"]
    assert record["software"]["lock_digest"] == told["lock"]

    locked = {entry.name: entry.version for entry in read_lock(builds.stack(name), builds.images).entries}
    shown = record["software"]["packages"]
    assert {"transformers", "safetensors", "tokenizers"} <= set(shown)
    assert {key: version for key, version in shown.items() if key in locked} == {
        key: locked[key] for key in shown if key in locked
    }
    interpreter = builds.stack(name).build.interpreter
    if interpreter is None:
        assert record["software"]["torch"] == locked["torch"]
    else:
        of_base, of_image = (
            in_container(docker_client, image, interpreter, "-c", TORCH_OF)
            for image in (below, "flagbench/stack:%s" % name)
        )
        assert of_base == of_image
        assert record["software"]["torch"] == json.loads(of_base)[0]
    if interpreter is not None and "pyyaml" in locked:
        imported, versions = json.loads(
            in_container(docker_client, "flagbench/stack:%s" % name, interpreter, "-c", WITHOUT_RECORD)
        )
        assert (imported, versions[0]) == (locked["pyyaml"], locked["pyyaml"])
        # What the distribution installed stays behind it; in pip's own folder there is one version alone.
        assert versions[1:] == (["6.0.1"] if stack == "cuda13" else [])


def runs(case, stack):
    """Whether the image of a case can be built on the stand-in of a stack: flash-attn's compilation needs nvcc."""
    compiled = {each["name"] for each in real_manifest(stack)["build"]["compiled"]}
    needs_nvcc = {"flash-attn"} & compiled & set(CATALOG.cases[case].needs)
    return case in CATALOG.stacks[stack].runs and not needs_nvcc


@pytest.mark.parametrize(
    ("case", "options", "layout", "libraries"),
    [
        ("llama2-7b-lora", SHORT, {"dp": 1, "tp": 1, "pp": 1}, ["transformers", "peft"]),
        ("aquila-33b", SPLIT, {"dp": 1, "tp": 2, "pp": 1}, ["megatron-core"]),
        # Its optimizer and its schedules import more than a forward pass does.
        ("llama2-70b", [*SPLIT, "--set", "pp=2"], {"dp": 1, "tp": 1, "pp": 2}, ["megatron-core"]),
    ],
)
@pytest.mark.parametrize("stack", CHANGES)
def test_the_libraries_of_every_stack_run_its_cases(case, options, layout, libraries, stack, builds, base, start):
    """What a lock lacks of theirs shows when they are imported."""
    if not runs(case, stack):
        return
    name = PREFIX + stack
    builds.build("%s:%s" % (case, name), "--base", base(CHANGES[stack].base))
    run = start(*options, image="flagbench/%s:%s" % (case, name), network_mode="none", user="4242:4242")
    assert run.wait() == 0, run.stderr
    assert run.record["layout"] == layout
    locked = {entry.name: entry.version for entry in read_lock(builds.stack(name), builds.images).entries}
    shown = run.record["software"]["packages"]
    assert {each: shown[each] for each in libraries} == {each: locked[each] for each in libraries}


def in_container(client, image, *command):
    """What a command prints in an image."""
    return client.containers.run(image, list(command[1:]), entrypoint=command[0], remove=True, network_mode="none")


# -- what is compiled, as far as it can be without a compiler for the device ---------------------------------------

METADATA = Path(__file__).parents[1] / "standins" / "metadata.j2"
COMPILED = {stack: [each["name"] for each in real_manifest(stack)["build"]["compiled"]] for stack in CHANGES}


@pytest.fixture(scope="module")
def needy(tmp_path_factory, wheelhouse):
    """A catalog whose case glm needs every package that any stack compiles; of each, it reads the metadata."""
    made = Builds(tmp_path_factory.mktemp("needy"), wheelhouse)
    case = made.manifests / "cases" / "glm.yaml"
    needs = sorted({name for names in COMPILED.values() for name in names})
    case.write_text("%s\nneeds: %s\n" % (case.read_text(encoding="utf-8"), json.dumps(needs)), encoding="utf-8")
    template = made.images / "templates" / "cases" / "glm.j2"
    template.parent.mkdir(parents=True)
    template.write_bytes(METADATA.read_bytes())
    return made


@pytest.mark.parametrize("stack", [stack for stack in CHANGES if COMPILED[stack]])
def test_every_package_to_compile_tells_its_metadata(stack, needy, base, docker_client):
    """Its setup runs there: what that imports and starts, such as git, the stage has to have."""
    name = PREFIX + stack
    needy.build("glm:%s" % name, "--base", base(CHANGES[stack].base))
    listed = in_container(docker_client, "flagbench/glm:%s" % name, "ls", "/opt/metadata").decode().split()
    locked = {entry.name: entry.version for entry in read_lock(needy.stack(name), needy.images).entries}
    assert sorted(listed) == sorted(
        "%s-%s.tar.gz" % (each.replace("-", "_"), locked[each]) for each in COMPILED[stack]
    )


def test_a_toolkit_is_copied_onto_a_base_without_one(builds, base, docker_engine, docker_client):
    """The beginning of the stack's Dockerfile and that instruction alone; links stay links."""
    stack = builds.stack("standin-a100-cuda11.8")
    dockerfile = ImageRenderer(load_catalog(builds.manifests)).render_stack(stack).dockerfile
    head, from_base, steps = dockerfile.partition("\nFROM ${BASE}\n")
    copying = re.findall(r"^RUN --mount=type=bind,from=toolkit(?:.*\\\n)*.*\n", steps, re.MULTILINE)
    assert len(copying) == 1
    directory = make_build_directory("standin/copied", head + from_base + copying[0], {})
    built = docker_engine.build(
        BuildRequest(
            context_tar(directory, {}),
            tags=("flagbench-standin/copied",),
            build_args={"BASE": base("debian"), "TOOLKIT": base("toolkit")},
        )
    )
    shown = in_container(docker_client, built.id, "sh", "-c", f"cd {stack.build.toolkit.folder}; {SHOW_TOOLKIT}")
    version, *files = shown.decode().splitlines()
    assert version.startswith("Cuda compilation tools, release 11.8,")
    # Another library of the toolkit stays behind.
    assert files == ["targets/x86_64-linux/include", "cusparse.h", *STATIC, "libcudart.so.11.0"]


# -- a base that is not the right one -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, reason",
    [
        ("debian", "has no /opt/conda/bin/python3"),
        ("python38", "/opt/conda/bin/python3 is Python 3.8, the stack is for 3.11"),
    ],
)
def test_a_wrong_base_fails_in_the_first_step_with_the_reason(given, reason, builds, base):
    done = builds.flagbench("build", "standin-c500-maca3", "--base", base(given), code=8)
    assert reason in done.stderr
    assert "install.sh" not in done.stderr, "nothing is installed on it"


def test_a_base_with_another_torch_is_refused_unchanged(builds, base):
    """The manifest says which torch the base has."""
    changed = overlay(real_manifest("c500-maca3"), CHANGES["c500-maca3"])
    changed.update(name="standin-other-torch", expects={"torch": "2.10.0+metax3.8"})
    write_manifest(builds.manifests, changed)
    write_lock(
        dataclasses.replace(read_lock(builds.stack("standin-c500-maca3"), builds.images), stack=changed["name"]),
        builds.images,
    )
    done = builds.flagbench("build", changed["name"], "--base", base("conda"), code=8)
    assert "the stack expects 2.10.0+metax3.8" in done.stderr
    assert "transformers" not in done.stderr


def without_optional(stack):
    """The manifest of a stack without the packages that only some cases need."""
    names = [line.split("==")[0] for line in stack["build"].pop("optional", [])]
    stack["build"]["left_out"].update(dict.fromkeys(names, "this test installs one package"))


@pytest.mark.parametrize("package, version", [("torch", "2.13.99"), ("numpy", "99.0")])
def test_a_lock_that_replaces_packages_of_the_base_is_refused(package, version, builds, base, tmp_path):
    """As a vendor's torch would be by what other packages ask for: here the lock itself names it."""
    changed = overlay(real_manifest("c500-maca3"), CHANGES["c500-maca3"])
    changed["name"] = "standin-replaces-%s" % package
    changed["build"]["packages"] = ["%s==%s" % (package, version)]
    without_optional(changed)
    write_manifest(builds.manifests, changed)
    files = {"__init__.py": "", "version.py": f"__version__ = '{version}'\ncuda = None\n"}
    wheel, content = make_wheel(package, version, {f"{package}/{name}": text for name, text in files.items()})
    (tmp_path / wheel).write_bytes(content)
    stack = builds.stack(changed["name"])
    lock = read_lock(builds.stack("standin-c500-maca3"), builds.images)
    entry = lock_entry(package, version, "sha256:" + hashlib.sha256(content).hexdigest())
    write_lock(
        dataclasses.replace(lock, stack=stack.name, inputs=inputs_digest(stack), entries=(entry,)), builds.images
    )
    done = builds.flagbench("build", stack.name, "--base", base("conda"), "--wheelhouse", str(tmp_path), code=8)
    assert "%s of the base was " % package in done.stderr
    assert "is %s now" % version in done.stderr
