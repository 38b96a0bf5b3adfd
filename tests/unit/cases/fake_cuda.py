"""A rank on a CUDA device that does not exist: torch's FakeTensorMode gives the devices, types and shapes of results,
without values.

torch for processors lacks parts of the device that are not operators. `install` adds them to a process, which cannot
run anything else afterwards: see `on_ranks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import shutil
import subprocess
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from flagbench_cases.contract import INFER, Context
from flagbench_cases.engines.megatron import open_engine
from flagbench_cases.rank.device import CudaDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.shared.manifests import load_case, package_of
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.config import merge, preset_of
from running import need

DEVICE = torch.device("cuda", 0)
GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""
"""Without it, the process ends when autograd records an operator on a tensor of the device."""
LIBRARY = "guard.so"


class HostGenerator(torch.Generator):
    """A generator of the host for any device."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls)


class Trace(TorchDispatchMode):
    """Counts the collectives by name, and gives the host numbers for what it reads of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            kind = args[0].dtype
            return False if kind is torch.bool else 2.0 if kind.is_floating_point else 0
        if func.namespace == "c10d":
            self.collectives[func._opname] += 1
            if func._opname.endswith("_coalesced_"):  # these alone have no implementation without values
                return FakeWork().boxed()
        return func(*args, **(kwargs or {}))


def compile_guard(folder: Path) -> Path:
    """The library of GUARD."""
    need(shutil.which("g++") is not None, "g++, to compile a device guard")
    home, source, library = Path(torch.__file__).parent, folder / "guard.cpp", folder / LIBRARY
    source.write_text(GUARD)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}", f"-L{home / 'lib'}"]
    subprocess.run([*command, "-o", str(library), str(source), "-lc10"], check=True)
    return library


def install(library: Path) -> None:
    """Give this process a device, whose guard was compiled, and collectives of objects."""
    ctypes.CDLL(str(library))
    cuda: Any = torch.cuda
    cuda.set_device = cuda.synchronize = cuda.manual_seed = cuda.set_rng_state = lambda *_: None
    cuda.current_device, cuda.get_device_capability = lambda: DEVICE, lambda *_: (8, 0)
    cuda.random.get_rng_state = cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
    cuda.Event = lambda **_: types.SimpleNamespace(record=lambda: None)
    anything: Any = torch
    anything.Generator = HostGenerator
    # A module moves its parameters by swapping them, which torch refuses to while a mode refers to them.
    anything.utils.weakref = types.SimpleNamespace(getweakrefs=lambda tensor: ())
    anything.distributed.all_gather_object = _same_everywhere


def _same_everywhere(objects: list[Any], mine: Any, group: Any = None) -> None:
    objects[:] = [mine] * len(objects)


class Rank:
    """A rank of a case at its published sizes, on random data."""

    def __init__(self, folder: Path, case: str, precision: str, layout: Layout, rank: int, **changes: Any) -> None:
        """`folder` has the compiled guard. `changes` of the reference preset, section by section."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if "megatron" in load_case(case)["engines"]:
            # It hands functions to torch.compile while it is imported, which looks at all of torch's.
            open_engine()
            importlib.import_module("flagbench_cases.engines.megatron.training")
        install(folder / LIBRARY)
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world)
        config = preset_of(load_case(case)["presets"], "reference")
        del config["data"]["default"]
        if "layout" in config:
            changes["layout"] = {"tp": layout.tp, "pp": layout.pp}
        config = merge(dict(config, case=case, precision=precision, weights="random", seed=1), changes)
        device = CudaDevice(0)
        probe, spool = CollectiveProbe(device.clock), RankSpool(str(folder), rank)
        self.mode, self.trace = FakeTensorMode(allow_non_fake_inputs=True), Trace()
        build = importlib.import_module(f"flagbench_cases.cases.{package_of(case)}.workload").build
        self.work = build(Context(config, device, rank, layout, 0, probe, spool, None, None))
        with self.running():
            self.work.setup()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run on the device."""
        with self.mode, self.trace:
            yield

    def batch(self) -> Any:
        """The first batch of the case's loader, on the host."""
        return next(iter(self.work.batches(INFER if hasattr(self.work, "infer") else 0)))

    def fake(self, batch: Any) -> Any:
        """The batch as tensors without values."""
        return tree_map_only(torch.Tensor, self.mode.from_tensor, batch)
