"""The metrics of a generation are those of vLLM's own benchmark from the same latencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from running import need
from unit.core.test_generation import evidence_of, latencies, metrics

pytestmark = [pytest.mark.image, pytest.mark.serving, pytest.mark.slow]
VLLM = Path(sys.prefix) / "serving"

BENCHMARK = """
import itertools, json, sys, types
import vllm
from vllm.benchmarks import latency, throughput
from vllm.benchmarks.datasets import SampleRequest
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

throughput.get_tokenizer = lambda *arguments, **options: None
request = SampleRequest(prompt="", prompt_len=32, expected_output_len=128)
throughput.get_requests = lambda arguments, tokenizer: [request] * (8 * len(latencies))
throughput.run_vllm = lambda *arguments, **options: (sum(latencies), None)
parser = FlexibleArgumentParser()
throughput.add_cli_args(parser)
options = ["--model", ".", "--dataset-name", "random", "--input-len", "32", "--output-len", "128"]
throughput.main(parser.parse_args([*options, "--output-json", "throughput.json"]))
"""
"""vLLM's two offline benchmarks, with an engine and a clock that give these latencies."""


def test_latencies_and_rates_are_those_of_vllm_bench(tmp_path: Path) -> None:
    need(VLLM.is_dir(), "vLLM (`make .venv/.serving`)")
    seconds = latencies(30)
    environment = {**os.environ, "PYTHONPATH": str(VLLM), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", BENCHMARK]
    subprocess.run(command, input=json.dumps(seconds), text=True, env=environment, cwd=tmp_path, check=True)
    found = metrics(evidence_of(seconds))
    published = json.loads((tmp_path / "latency.json").read_text(encoding="utf-8"))
    assert published["latencies"] == seconds
    assert found["latency_mean"]["value"] == pytest.approx(published["avg_latency"], rel=1e-15)
    assert found["latency_p50"]["value"] == published["percentiles"]["50"]
    assert found["latency_p99"]["value"] == published["percentiles"]["99"]
    published = json.loads((tmp_path / "throughput.json").read_text(encoding="utf-8"))
    assert found["requests_per_second"]["value"] == pytest.approx(published["requests_per_second"], rel=1e-14)
    assert found["total_tokens_per_second"]["value"] == pytest.approx(published["tokens_per_second"], rel=1e-14)
