"""The metrics of a case that generates tokens, by the names and the arithmetic of vLLM's benchmarks."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from flagbench_cases.record.measured import Border, build_span
from flagbench_core.evidence import EvidenceError, RecordEvidence
from flagbench_core.evidence.document import read_evidence
from flagbench_core.evidence.generation import generation_of
from flagbench_core.stats.summary import percentile
from unit.cases.record.runs import metrics_of, step

pytestmark = pytest.mark.image

MODEL = {"dim": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab_size": 128256}
PROMPT, OUTPUT, BATCH = 32, 128, 8


def config(model: dict[str, Any] = MODEL, tp: int = 1, **data: Any) -> dict[str, Any]:
    return {
        "model": model,
        "precision": "bf16",
        "layout": {"tp": tp},
        "data": {"prompt_length": PROMPT, "output_length": OUTPUT, **data},
        "infer": {"batch_size": BATCH},
    }


def evidence_of(seconds: list[float], iterations: list[list[int]] | None = None, block: int = 1) -> RecordEvidence:
    """A warm-up of one step, then batches of so long, with the microseconds of the engine's iterations."""
    steps = [step(device=time)._replace(host=time, samples=BATCH, tokens=BATCH * OUTPUT) for time in [9.0, *seconds]]
    borders = (Border("infer", "warmup", 0, 1), Border("infer", "window", 1, len(steps)))
    warmup, window = (build_span(border, {0: steps}, block) for border in borders)
    window = window._replace(micro_batches=iterations or ())
    return RecordEvidence(1, block, [warmup, window], timing={}, durations={}, memory={}, ceilings=[], loss_tail=[])


def metrics(evidence: RecordEvidence, **changes: Any) -> dict[str, dict[str, Any]]:
    return metrics_of(evidence, kind="infer", unit="tokens", generation=generation_of(config(**changes)))


def latencies(count: int) -> list[float]:
    """Seconds as evidence has them, to the microsecond."""
    draw = random.Random(count)
    return [round(draw.gauss(0.577, 0.004), 6) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 15, 30, 99])
def test_latencies_are_those_of_numpy(count: int) -> None:
    """`vllm bench latency` writes numpy's mean and its percentiles, with their default rule."""
    numpy = pytest.importorskip("numpy")
    seconds = latencies(count)
    found = metrics(evidence_of(seconds))
    assert found["latency_p50"]["value"] == numpy.percentile(seconds, 50)
    assert found["latency_p99"]["value"] == numpy.percentile(seconds, 99)
    assert found["latency_mean"]["value"] == pytest.approx(numpy.mean(seconds), rel=1e-15)
    for percent in (10, 25, 50, 75, 90, 99):
        assert percentile(seconds, percent) == numpy.percentile(numpy.array(seconds), [percent])[0]


def test_rates_are_those_of_vllm() -> None:
    """`vllm bench throughput` divides requests and tokens by the elapsed time; its tokens_per_second is the total."""
    seconds = latencies(30)
    found = metrics(evidence_of(seconds))
    elapsed = sum(seconds)
    assert found["requests_per_second"]["value"] == pytest.approx(30 * BATCH / elapsed, rel=1e-12)
    assert found["total_tokens_per_second"]["value"] == pytest.approx(30 * BATCH * 160 / elapsed, rel=1e-12)
    assert found["output_tokens_per_second"]["value"] == pytest.approx(30 * BATCH * 128 / elapsed, rel=1e-12)
    assert found["requests_per_second"]["unit"] == "requests/s"


def iterations_of(seconds: list[float], first: int = 30_000) -> list[list[int]]:
    """A long first iteration, and further ones with noise that take the rest of each batch."""
    draw = random.Random(5)
    rows = []
    for time in seconds:
        mean = (time * 1e6 - first) / (OUTPUT - 1)
        rows.append([first, *(round(mean * draw.gauss(1, 0.002)) for _ in range(OUTPUT - 1))])
    return rows


def test_iterations_give_the_first_and_further_tokens_and_the_interval_of_rates() -> None:
    seconds = [0.577] * 30
    iterations = iterations_of(seconds)
    evidence = evidence_of(seconds, iterations)
    found = metrics(evidence)
    assert found["ttft"]["value"] == 0.03
    assert found["tpot"]["value"] == pytest.approx((0.577 - 0.03) / 127, rel=1e-3)
    assert (found["ttft"]["n"], found["tpot"]["n"]) == (30, 30 * 127)
    low, high = found["output_tokens_per_second"]["ci95"]
    assert low < found["output_tokens_per_second"]["value"] < high
    assert found["latency_mean"]["ci95"] == pytest.approx([BATCH * OUTPUT / high, BATCH * OUTPUT / low])
    assert "ci95" not in metrics(evidence_of(seconds))["output_tokens_per_second"]  # 30 steps alone are too few
    assert metrics(read_evidence(json.loads(json.dumps(evidence.to_json())))) == found


def test_a_stall_beside_which_other_batches_take_almost_no_time_leaves_no_interval() -> None:
    seconds = [2000.0, *[0.577] * 29]
    iterations = [[round(time * 1e6 / OUTPUT)] * OUTPUT for time in seconds]
    found = metrics(evidence_of(seconds, iterations))
    assert found["latency_mean"]["value"] == pytest.approx(sum(seconds) / 30)
    assert "ci95" not in found["latency_mean"]


def test_decode_bandwidth_is_what_a_device_reads() -> None:
    """Of Llama 3.1 8B: 7,504,658,432 weights without the embeddings, and 131,072 bytes of cache for each position."""
    evidence = evidence_of([0.577] * 30, iterations_of([0.577] * 30))
    found = metrics(evidence)
    read = 2 * 7_504_658_432 + 131_072 * 8 * (32 + 64)
    assert found["decode_bandwidth"]["value"] == pytest.approx(read / found["tpot"]["value"] / 1e9, rel=1e-12)
    assert found["decode_bandwidth"]["scope"] == "device"
    # Each of 4 devices has a quarter.
    quarter = metrics(evidence, tp=4)
    assert quarter["decode_bandwidth"]["value"] == pytest.approx(found["decode_bandwidth"]["value"] / 4, rel=1e-12)


def test_decode_bandwidth_is_compared_with_the_memory_of_the_same_run() -> None:
    evidence = evidence_of([0.577] * 30, iterations_of([0.577] * 30))
    copies = build_span(
        Border("memory_bandwidth", "window", 0, 20, {"operation": "copy", "bytes": 2**30}),
        {0: [step(device=0.001)._replace(samples=1.0)] * 20},
        1,
    )
    found = metrics(evidence._replace(roofs=(copies,)))
    share = found["decode_bandwidth"]["value"] / found["memory_bandwidth"]["value"]
    assert found["decode_bandwidth_roof"]["value"] == share
    assert "decode_bandwidth_roof" not in metrics(evidence)


def test_an_engine_that_reads_prompts_in_parts_has_no_time_to_the_first_token() -> None:
    iterations = [[15_000, 15_000, *row[1:]] for row in iterations_of([0.577] * 30)]
    found = metrics(evidence_of([0.577] * 30, iterations))
    assert found.keys().isdisjoint({"ttft", "tpot", "decode_bandwidth"})
    assert "latency_p99" in found


def test_sums_of_several_batches_have_a_mean_and_no_percentiles() -> None:
    found = metrics(evidence_of([0.5, 0.6, 0.7, 0.8], block=2))
    assert found["latency_mean"]["value"] == pytest.approx(0.65)
    assert "latency_p50" not in found


def test_a_configuration_without_lengths_generates_nothing() -> None:
    assert generation_of({"data": {"sequence_length": 512}}) is None
    assert generation_of({}) is None


@pytest.mark.parametrize(
    "broken",
    [
        config({**MODEL, "heads": 0}),
        config({**MODEL, "dim": "many"}),
        config(tp=0),
        config(output_length=0),
        config(prompt_length=None),
        {**config(), "precision": "fp8"},
        {**config(), "infer": []},
        {**config(), "layout": []},
    ],
)
def test_a_broken_configuration_is_refused(broken: dict[str, Any]) -> None:
    """As one in a record that somebody edited."""
    with pytest.raises(EvidenceError):
        generation_of(broken)
