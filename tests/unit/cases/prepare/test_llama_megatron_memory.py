"""Converting a checkpoint of Megatron-LM takes less memory than two of its shards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flagbench_cases.prepare.llama import weights_format
from unit.cases.prepare.megatron_checkpoint import SECTION, save, shard, split
from unit.cases.prepare.pickled import CURRENT_TORCH

pytestmark = [pytest.mark.image, CURRENT_TORCH]

LARGE = {**SECTION, "layers": 4, "dim": 1024, "heads": 8, "ffn": 4096, "vocab_size": 1021}
CHILD = """
import json, sys
from flagbench_cases.prepare.llama import megatron
from flagbench_cases.prepare.writer import Writer
import safetensors.torch, torch
out, source, section = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.ones(9).sum()
used = [line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1]
print(used, flush=True)
megatron.convert(source, section, Writer(out, "aquila-33b", "weights", None, None), lambda *_: None)
"""


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory by kind is Linux's")
def test_memory_stays_below_two_shards(tmp_path: Path) -> None:
    zeros = {name: torch.zeros(shape) for name, shape in weights_format.shapes(LARGE).items()}
    source = save(tmp_path / "source", split(zeros, 4, torch.zeros(3, 1024), LARGE))
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", CHILD, str(tmp_path / "out"), str(source), json.dumps(LARGE)]
    # A fixed threshold: memory that was freed goes back to the system at once, and is not counted.
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        before = int(process.stdout.readline()) * 1024
        peak = before
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            try:
                process.wait(0.001)
            except subprocess.TimeoutExpired:
                continue
    assert process.returncode == 0
    size = shard(source, 0).stat().st_size
    assert size > 60e6
    assert peak - before < 2 * size, "%.2f shards" % ((peak - before) / size)
    for folder in (tmp_path / "out", source):
        shutil.rmtree(str(folder))


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is not a mapped file's; 0 if it has ended."""
    try:
        lines = Path("/proc/%d/status" % pid).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
