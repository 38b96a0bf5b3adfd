"""The image under docker's own command, and `flagbench run --via docker`, with a real engine."""

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from datetime import datetime

import jsonschema
import pytest

from flagbench.images.lockfile import parse_lock
from flagbench.manifests.load import load_catalog_without_claims
from running import ENDLESS, need

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHORT = [*ENDLESS[:-1], "20"]


@pytest.mark.parametrize(
    ("case", "length"),
    [
        ("distilbert", ["--steps", "20"]),
        ("glm", ["--steps", "20"]),
        ("llama2-7b-lora", ["--steps", "20"]),
        ("aquila-33b", []),
        ("llama3-8b", []),
    ],
)
def test_stdout_is_one_line_the_record(case, length, image_of, start, record_schema):
    """The tiny set comes with the image and is learned, without a network.

    Aquila scores it with a model that was trained, and split over both ranks. Three cases are not trained to the end:
    `make demo` and tests/engine do that.
    """
    run = start("--nodes", "1", "--gpus", "2", "--preset", "tiny", *length, image=image_of(case), network_mode="none")
    assert run.wait() == 0, run.stderr
    record = run.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (record["status"]["state"], record["case"]) == ("ok", case)
    assert record["system"]["image"]["context_digest"].startswith("sha256:")
    checks = {check["name"]: check["ok"] for check in record["quality"]["checks"]}
    assert all(checks.values()), checks
    *_, passed, following = run.stderr.splitlines()
    assert passed == "flagbench: all %d checks passed" % len(checks)
    assert following.endswith("`flagbench verify record.json`")
    if case == "aquila-33b":
        assert record["conditions"]["layout"] == "dp1 tp2 pp1"
        assert {metric["name"]: metric["value"] for metric in record["metrics"]}["loss"] < 1
    elif case == "llama3-8b":
        assert record["conditions"]["layout"] == "dp2 tp1 pp1"
        assert {"learned", "ranks_in_step"} <= set(checks)


def test_docker_stop_ends_within_3_seconds_with_a_record(start):
    run = start("--gpus", "2", *ENDLESS)
    run.wait_for_training()
    told = time.time()
    run.container.stop(timeout=10)
    # By the engine, which may be late with its answer.
    ended = datetime.strptime(run.state["FinishedAt"][:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    assert ended - told < 3
    assert run.state["ExitCode"] == 7
    status = run.record["status"]
    assert (status["state"], status["reason"]) == ("interrupted", "interrupted by SIGTERM")


def test_a_fatal_signal_reaches_the_parent_of_the_ranks(start):
    run = start("--gpus", "1", *ENDLESS)
    run.wait_for_training()
    run.container.kill(signal="SIGUSR1")
    assert run.wait() == 7, run.stderr
    status = run.record["status"]
    assert (status["state"], status["reason"]) == ("interrupted", "interrupted by SIGUSR1")


@pytest.mark.parametrize("user", ["0:0", "4242:4242"])
def test_any_user_will_do(start, user):
    run = start(*SHORT, user=user, cap_drop=["ALL"], security_opt=["no-new-privileges"])
    assert run.wait() == 0, run.stderr
    assert run.record["status"]["state"] == "ok"


OF_PYTHON = {"PYTHONHOME": "/x", "PYTHONPLATLIBDIR": "x", "PYTHONINSPECT": "1", "PYTHONSTARTUP": "/x"}
OF_THE_SYSTEM = {
    "LD_PRELOAD": "/no/such.so",
    "PATH": "/nowhere",
    "LC_ALL": "xx_YY",
    "TMPDIR": "/nowhere",
    "HOME": "/nowhere",
}


@pytest.mark.parametrize(
    "environment, options",
    [
        ({"PYTHONPATH": "x", "PYTHONSAFEPATH": "1", **OF_PYTHON}, {}),
        (OF_THE_SYSTEM, {"working_dir": "/else"}),
        ({}, {"read_only": True, "tmpfs": {"/tmp": "exec"}, "user": "4242:4242"}),
        (
            {"PYTHONPATH": "x"},
            {"entrypoint": ["/opt/flagbench/venv/bin/python3", "-m", "flagbench_cases", "distilbert"]},
        ),
    ],
    ids=["python", "system", "read-only", "entrypoint"],
)
def test_settings_around_an_image_do_not_hide_its_code(environment, options, start):
    run = start(*SHORT[:-1], "1", environment={"OMP_NUM_THREADS": "1", **environment}, **options)
    assert run.wait() == 0, run.stderr
    assert run.record["status"]["state"] == "ok"


@pytest.mark.parametrize(
    "environment, options",
    [({"PYTHONHASHSEED": "none"}, {}), ({}, {"read_only": True})],
    ids=["no Python starts", "nowhere to write"],
)
def test_what_keeps_the_ranks_from_starting_leaves_a_record(environment, options, start):
    run = start(*SHORT, environment=environment, **options)
    assert run.wait() == 4, run.stderr
    assert (run.record["status"]["state"], run.record["status"]["exit_code"]) == ("failed", 4)


EXTENSION = r"""
import importlib.util, os, subprocess, sysconfig
source, module = "/tmp/answer.cpp", "/tmp/answer.so"
open(source, "w").write('''#include <Python.h>
#include <vector>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "answer", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_answer() {
    std::vector<long> values(42, 1);
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "size", values.size());
    return made;
}
''')
subprocess.run(["g++", "-shared", "-fPIC", "-I", sysconfig.get_path("include"), source, "-o", module], check=True)
spec = importlib.util.spec_from_file_location("answer", module)
answer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answer)
print(answer.size)
"""


def test_a_module_for_python_is_compiled_in_a_run(docker_client, cpu_image):
    """As Triton's launcher, torch.compile and DeepSpeed's operators are on first use: by a user that nobody knows."""
    printed = docker_client.containers.run(
        cpu_image, ["-c", EXTENSION], entrypoint="python3", user="4242:4242", network_mode="none", remove=True
    )
    assert printed == b"42\n"


def test_an_image_without_devices_says_how_to_give_them(start, tmp_path):
    """The cpu image told that its stack is an A100's: Python and torch are as expected, the devices are not there."""
    stacks = os.path.join(ROOT, "entrypoints", "flagbench_cases", "shared", "stacks")
    with open(os.path.join(stacks, "cpu.json"), encoding="utf-8") as cpu:
        stack = json.load(cpu)
    with open(os.path.join(stacks, "a100-cuda11.8.json"), encoding="utf-8") as a100:
        stack.update({key: value for key, value in json.load(a100).items() if key in ("device", "docker")})
    (tmp_path / "cpu.json").write_text(json.dumps(stack))
    place = "/opt/flagbench/flagbench_cases/shared/stacks/cpu.json"
    run = start("--gpus", "2", *SHORT, volumes={str(tmp_path / "cpu.json"): {"bind": place, "mode": "ro"}})
    assert run.wait() == 13, run.stderr
    status = run.record["status"]
    assert status["exit_code"] == 13
    assert "finds 0 device(s)" in status["reason"]
    options = status["remedy"].partition("docker run ")[2]
    assert options.startswith("--gpus all --shm-size 16g --ulimit memlock=-1")


def test_a_run_in_a_container_end_to_end(tool, docker_client, cpu_image, tmp_path, record_schema):
    out = tmp_path / "a, b:c\n'd"
    ended = tool.run("--gpus", "2", *SHORT, "--out", str(out), AWS_SECRET_ACCESS_KEY="not-for-a-container")
    assert ended.returncode == 0, ended.err
    assert any(line.split()[:1] == ["metric"] for line in ended.out.splitlines())
    assert "flagbench: train" in ended.err, "progress is shown as it comes"
    assert "checks passed" not in ended.err, "the image's own answer would be a second one"
    record = tool.stored()
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert record["run_id"] == tool.run_id
    assert f"record {record['record_id']}" in ended.out
    image = docker_client.images.get(cpu_image)
    assert record["system"]["image"]["digest"] in {image.id, *image.attrs["RepoDigests"]}
    assert record["system"]["image"]["id"] == image.id
    machine = docker_client.info()["Name"]
    assert (record["system"]["host"], record["ranks"][0]["host"]) == (machine, machine)
    assert record["software"]["lock_digest"].startswith("sha256:")
    (file,) = out.iterdir()
    assert json.loads(file.read_text()) == record
    assert file.stat().st_uid == os.geteuid()
    assert tool.containers() == [], "removed"


def test_the_bundle_of_a_reproduction_has_the_lock_of_its_image(tool, docker_client, cpu_image, tmp_path):
    path = str(tmp_path / "bundle.tar.gz")
    row = ["distilbert/a100-1x1-fp32-bs96", "--on", "cpu", "--preset", "tiny", "--steps", "20", "--runs", "1"]
    ended = tool.do("reproduce", *row, "--via", "docker", "--out", path)
    assert ended.returncode == 10, ended.err
    with tarfile.open(path) as bundle:
        files = {name: bundle.extractfile(name).read() for name in bundle.getnames()}
    assert json.loads(files["reproduction.json"])["missing"] == {}
    (record,) = (json.loads(content) for name, content in files.items() if name.startswith("records/"))
    labels = docker_client.images.get(cpu_image).labels
    lock = parse_lock(files["pylock.toml"].decode(), load_catalog_without_claims().stacks["cpu"])
    assert lock.digest == record["software"]["lock_digest"] == labels["dev.flagbench.lock"]
    assert record["system"]["image"]["context_digest"] == labels["dev.flagbench.context"]
    assert tool.do("bundle", "verify", path).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_tool_ends_the_run_with_its_record(tool, cpu_image, number):
    process, _ = tool.start_run(*ENDLESS, said="flagbench: train")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 7, err
    status = tool.stored()["status"]
    assert (status["state"], status["reason"]) == ("interrupted", "interrupted by %s" % number.name)
    assert tool.containers() == []


def test_a_killed_tool_leaves_a_container_that_can_be_found(tool, cpu_image):
    """Nobody is left to end the run: it goes on, under its label, and `docker stop` still gets its record."""
    process, container = tool.start_run(*ENDLESS, said="flagbench: train")
    process.kill()
    process.communicate(timeout=30)
    container.reload()
    assert container.status == "running"
    container.stop(timeout=10)
    record = json.loads(container.logs(stdout=True, stderr=False))
    assert (record["run_id"], record["status"]["state"]) == (tool.run_id, "interrupted")


def test_a_rank_killed_for_memory_is_told_apart_by_the_image(tool, cpu_image):
    """The largest process goes first; the image's parent outlives it and says so."""
    ended = tool.run(*ENDLESS, "--memory", "220m")
    assert ended.returncode == 5, ended.err
    assert tool.stored()["status"]["exit_code"] == 5


def test_the_line_that_is_shown_makes_the_same_container(tool, cpu_image, tmp_path):
    """Held against the engine's own reading of both, with names that a shell or a list would split.

    What `flagbench run` stores itself, the record and the bundle, is not part of the line.
    """
    need(shutil.which("docker") is not None, "the docker command, whose line is shown")
    names = ["a, b", "q\"uo'te", "new\nline:ro"]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    options = ["--data", str(folders[0]), "--weights", str(folders[1]), "--out", str(folders[2]), "--memory", "512m"]
    ended = tool.run(*options, "--dry-run", "--json", NCCL_DEBUG="WARN")
    assert ended.returncode == 0, ended.err
    line = json.loads(ended.out)["command"].replace("docker run", "docker create", 1)
    subprocess.run(line, shell=True, check=True, env=tool.env, stdout=subprocess.DEVNULL)
    (by_shell,) = tool.containers()
    shell = dict(by_shell.attrs)
    by_shell.remove()
    # Data that is no data set ends the run at once; the container is kept to be looked at.
    assert tool.run(*options, "--keep-container", NCCL_DEBUG="WARN").returncode == 3
    (by_tool,) = tool.containers()
    assert_same_container(by_tool.attrs, shell)
    assert mounts(shell) == sorted(zip(map(str, folders), ("/data", "/weights", "/out"), (False, False, True)))


def assert_same_container(ours, shell):
    """That `flagbench run` and the line it shows make the same container, by the engine's description of both."""
    assert [word for word in ours["Args"] if word != "--bundle=/bundle"] == shell["Args"]
    assert ours["Config"]["User"] == shell["Config"]["User"]
    # Whoever types the line gets the image's own answer.
    added = ("FLAGBENCH_IMAGE_", "FLAGBENCH_HOST=", "FLAGBENCH_LAUNCHER=")
    of_the_tool = [entry for entry in ours["Config"]["Env"] if entry.startswith(added)]
    assert sorted(ours["Config"]["Env"]) == sorted([*shell["Config"]["Env"], *of_the_tool])
    settings = ("NetworkMode", "ShmSize", "Ulimits", "GroupAdd", "CapAdd", "Devices", "DeviceRequests")
    for key in (*settings, "Memory", "MemorySwap", "Privileged"):
        assert (ours["HostConfig"][key] or None) == (shell["HostConfig"][key] or None), key
    assert [mount for mount in mounts(ours) if mount[1] != "/bundle"] == mounts(shell)


def mounts(attrs):
    return sorted((mount["Source"], mount["Destination"], mount["RW"]) for mount in attrs["Mounts"])
