"""The FLOPs of a real step of each case are those that torch counts: forward, backward and what is recomputed."""

from __future__ import annotations

import functools
import importlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.contract import INFER, Work
from flagbench_cases.shared.manifests import load_case, load_stack, package_of
from flagbench_core.config import Options, merge, resolve
from flagbench_core.flops import FORMULAS, batch_of, generation, llama_forward
from running import need_imports
from workloads import on_ranks, set_up

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(find_spec("torch.utils.flop_counter") is None, reason="torch counts FLOPs from 2.1 on"),
]

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "aquila-33b": ("aquila-33b", {}),
    "distilbert": ("distilbert", {}),
    **{f"glm, recompute {on}": ("glm", {"model": {"recompute": on}}) for on in (False, True)},
    **{f"lora, recompute {on}": ("llama2-7b-lora", {"train": {"recompute": on}}) for on in (False, True)},
    # On a processor torch does not count attention in one kernel.
    **{
        f"lora of all, recompute {on}": ("llama3.1-8b-lora", {"train": {"recompute": on, "fused_attention": False}})
        for on in (False, True)
    },
    **{
        f"llama2-70b, recompute {how}": ("llama2-70b", {"train": {"recompute": how, "flash_attention": False}})
        for how in ("none", "selective", "full")
    },
}
"""A case, and changes of its tiny preset."""


def count(case: str, changes: dict[str, Any], folder: Path) -> tuple[Any, int]:
    """The work of a step, and the FLOPs that torch counts in it."""
    from torch.utils.flop_counter import FlopCounterMode

    folder.mkdir()
    with suppress(ImportError):
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()  # of an earlier step of this rank
    options = Options(preset="tiny", source="synthetic", steps=9)
    config = resolve(load_case(case), load_stack("cpu"), options)
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % package_of(case))
    work = set_up(module.build, merge(config, changes), folder)
    infers = hasattr(work, "infer")
    batch = next(iter(work.batches(INFER if infers else 0)))
    with FlopCounterMode(display=False) as counter:
        (work.infer if infers else work.step)(work.to_device(batch))
    return tuple(work.work(batch)), counter.get_total_flops()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, int]]:
    """What `count` finds in each step that has its imports, all of them in one process."""

    def count_all(folder: Path, rank: int, world: int) -> dict[str, tuple[Any, int]]:
        found = {}
        for name, (case, changes) in STEPS.items():
            if all(find_spec(package) for package in load_case(case).get("imports", ())):
                found[name] = count(case, changes, folder / name)
        return found

    (found,) = on_ranks(1, tmp_path_factory.mktemp("flops"), count_all)
    return found


# The published sizes, without memory for them. Those of the split models are in test_fake_cuda.

META = torch.device("meta")


def classifier(model: dict[str, Any]) -> Any:
    """A sample of DistilBERT."""
    from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from

    network = DistilBertClassifier(config_from(model))
    return lambda: network(*(torch.zeros(1, 512, dtype=torch.long) for _ in range(2)))


def cloze(model: dict[str, Any]) -> Any:
    """A choice of GLM."""
    from flagbench_cases.cases.glm.model import GlmForCloze, config_from

    network, zeros = (
        GlmForCloze(config_from({**model, "recompute": False})),
        functools.partial(torch.zeros, dtype=int),
    )
    return lambda: network(zeros(1, 1, 512), zeros(1, 1, 2, 512), zeros(1, 1), zeros(1, 1, 512), zeros(1, 1, 512))


def lora(model: dict[str, Any]) -> Any:
    """A block of Llama2-7B LoRA."""
    from flagbench_cases.cases.llama2_7b_lora import lora as adapters
    from flagbench_cases.cases.llama2_7b_lora.model import build, shape_from

    shape = shape_from(model)
    network = adapters.attach(build(shape, torch.float32, META), shape, False)
    ids = torch.zeros(1, 512, dtype=torch.long)
    return lambda: network(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss


def lora_of_all(model: dict[str, Any]) -> Any:
    """A sequence of a geometry on random weights."""
    from flagbench_cases.cases.llama2_7b_lora.decoder import Decoder
    from flagbench_cases.cases.llama2_7b_lora.model import shape_from

    network, ids = Decoder(shape_from(model), False), torch.zeros(1, 4096, dtype=torch.long)
    return lambda: network(ids, ids)


@pytest.mark.parametrize(
    ("case", "make", "tokens", "stated"),
    [
        ("distilbert", classifier, 512, {"144.96e9": lambda found: found.executed}),
        ("glm", cloze, 512, {"1101.3e9": lambda found: found.executed, "335.0e9": lambda found: found.layers}),
        ("llama2-7b-lora", lora, 512, {"27.15e9": lambda found: found.executed / 512}),
        ("llama3.1-8b-lora", lora_of_all, 4096, {"36.66e9": lambda found: found.executed / 4096}),
        ("qwen2.5-7b-lora", lora_of_all, 4096, {"33.42e9": lambda found: found.executed / 4096}),
    ],
)
def test_flops_of_the_published_sizes(case: str, make: Any, tokens: int, stated: dict[str, Any]) -> None:
    """Those that torch counts, the formula's, and those that the manifest states."""
    from torch.utils.flop_counter import FlopCounterMode

    need_imports(case)
    manifest = load_case(case)
    model = manifest["presets"]["reference"]["model"]
    with META:
        step = make(model)
        with FlopCounterMode(display=False) as counter:
            step().sum().backward()
    found = FORMULAS[manifest["flops"]["formula"]](model, batch_of(1, tokens))
    assert counter.get_total_flops() == found.executed
    for number, of in stated.items():
        assert number in manifest["flops"]["source"]
        assert of(found) == pytest.approx(float(number), rel=5e-4)


@pytest.mark.parametrize("name", STEPS)
def test_flops_are_those_that_torch_counts(counted: dict[str, tuple[Any, int]], name: str) -> None:
    need_imports(STEPS[name][0])
    work, total = counted[name]
    done = Work(*work)
    assert done.flops_executed + done.flops_recomputed == pytest.approx(total, rel=1e-3)
    assert (done.flops_recomputed > 0) == name.endswith(("True", "selective", "full"))


@pytest.mark.parametrize(
    ("sequences", "prompt", "output", "layers"), [(8, 32, 8, 32), (2, 5, 6, 2)], ids=["llama3.1-8b", "odd"]
)
def test_flops_of_a_generation(sequences: int, prompt: int, output: int, layers: int) -> None:
    """Those of transformers' Llama: the prompt, then one token at a time with the keys and values of the others."""
    transformers = pytest.importorskip("transformers", minversion="5")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        attn_implementation="eager",  # torch counts its products on every device
    )
    with META, torch.no_grad():
        network = transformers.LlamaForCausalLM(config)
        cache = transformers.DynamicCache(config=config)
        with FlopCounterMode(display=False) as counter:
            for length in [prompt] + [1] * (output - 1):
                tokens = torch.zeros(sequences, length, dtype=torch.long)
                network(tokens, past_key_values=cache, logits_to_keep=1)
    manifest = load_case("serve-llama3.1-8b")
    model = manifest["presets"]["reference"]["model"]
    assert llama_forward(model, generation(8, 32, 128)).executed / (8 * 128) == pytest.approx(18.44e9, rel=5e-4)
    assert "18.44e9" in manifest["flops"]["source"]
    model = {**model, "layers": layers}
    assert counter.get_total_flops() == llama_forward(model, generation(sequences, prompt, output)).executed
