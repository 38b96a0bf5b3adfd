"""The metrics of a generation are those of vLLM's own benchmark from the same latencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unit.core.test_generation import latencies, metrics, section_of

pytestmark = [pytest.mark.image, pytest.mark.serving, pytest.mark.slow]
VLLM = Path(sys.prefix) / "serving"

BENCHMARK = """
import itertools, json, sys, types
import vllm
from vllm.benchmarks import latency
from vllm.utils.argparse_utils import FlexibleArgumentParser

class Engine:  # answers at once
    llm_engine = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=1024))
    generate = lambda self, *prompts, **options: None
    from_engine_args = classmethod(lambda kind, arguments: kind())

vllm.LLM = Engine
latencies = json.load(sys.stdin)
clock = itertools.chain.from_iterable((0.0, seconds) for seconds in latencies)
latency.time = types.SimpleNamespace(perf_counter=lambda: next(clock))
parser = FlexibleArgumentParser()
latency.add_cli_args(parser)
count = str(len(latencies))
options = ["--model", ".", "--num-iters-warmup", "0", "--num-iters", count, "--output-json", "latency.json"]
latency.main(parser.parse_args(options))
"""
"""`vllm bench latency` with an engine and a clock that give these latencies."""


def test_latencies_are_those_of_vllm_bench_latency(tmp_path: Path) -> None:
    if not VLLM.is_dir():
        pytest.skip("`make .venv/.serving` installs vLLM")
    seconds = latencies(30)
    environment = {**os.environ, "PYTHONPATH": str(VLLM), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", BENCHMARK]
    subprocess.run(command, input=json.dumps(seconds), text=True, env=environment, cwd=tmp_path, check=True)
    published = json.loads((tmp_path / "latency.json").read_text(encoding="utf-8"))
    assert published["latencies"] == seconds
    found = metrics(section_of(seconds))
    assert found["latency_mean"]["value"] == pytest.approx(published["avg_latency"], rel=1e-15)
    assert found["latency_p50"]["value"] == published["percentiles"]["50"]
    assert found["latency_p99"]["value"] == published["percentiles"]["99"]
