"""The tiny preset of Aquila-33B on one gloo rank or several, and what transformers gives for its sentences."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from flagbench_cases.cases.aquila_33b import sentences
from flagbench_cases.cases.aquila_33b.workload import AquilaWorkload
from flagbench_cases.contract import INFER
from flagbench_cases.engines.groups import make_groups
from flagbench_cases.prepare.llama import load
from flagbench_cases.rank.infer_loop import InferLoop, InferPlan
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import SpoolReader
from flagbench_core.config import merge, preset_of
from unit.cases.engines.megatron_bench import context_of, transformers_model

WHOLE = InferPlan(warmup_steps=0, window_steps=None)


def configured(**changes: Any) -> dict[str, Any]:
    """The configuration of the tiny preset in fp32 on its shipped set; `changes` replace keys section by section."""
    config = preset_of(load_case("aquila-33b")["presets"], "tiny")
    config["data"]["source"] = config["data"].pop("default")
    return merge(dict(config, precision="fp32", weights="random", seed=1234), changes)


def some_sentences(count: int, length: int = 128) -> sentences.SentenceSet:
    """Sentences of 2 to 40 random tokens; the longest are as long as a sentence may be."""
    draw = np.random.RandomState(0)
    lengths = [2, length + 1, *draw.randint(3, 41, size=count)][:count]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return sentences.SentenceSet(draw.randint(1, 448, size=int(offsets[-1])).astype(np.int32), offsets, length)


def workload(folder: Path, rank: int, layout: Layout, count: int = 0, **changes: Any) -> AquilaWorkload:
    """A rank's workload, set up; on `count` random sentences if given, else on the shipped ones."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()  # of an earlier workload of this rank
    limit = datetime.timedelta(seconds=60)
    groups = make_groups(layout, rank, limit) if layout.world > 1 else {}
    work = AquilaWorkload(context_of(folder, rank, layout, configured(**changes), groups=groups))
    real = sentences.load
    if count:
        sentences.load = lambda *_: sentences.Loaded(some_sentences(count), "files")
    try:
        work.setup()
    finally:
        sentences.load = real
    return work


def scored(folder: Path, rank: int, layout: Layout, **options: Any) -> dict[str, Any]:
    """A whole pass in the case's own loop: its evaluation, and this rank's batches and steps, whose losses are as
    they were recorded."""
    work = workload(folder, rank, layout, **options)
    context = work.context
    batches = list(work.batches(INFER))
    context.spool.reserve(len(batches))
    InferLoop(work, WHOLE, context.spool, context.device, context.probe, layout.counts(rank)).run()
    reader = SpoolReader(str(folder), rank)
    (evaluation,) = [fact for fact in reader.facts() if fact["kind"] == "evaluation"]
    return {"evaluation": evaluation, "steps": [tuple(step) for step in reader.steps()], "batches": batches}


def shipped_weights() -> dict[str, torch.Tensor]:
    """The weights of the shipped model by their Hugging Face names, fp32."""
    source = load.Weights(sentences.TINY, configured()["model"])
    return {name: load.read_all(part).float() for name, part in source.read(source.names)}


def by_transformers(made: sentences.SentenceSet, padding: str = "zeros", rows: int = 0) -> list[float]:
    """The mean loss of each sentence, in nats, of the shipped weights: without padding of the sentence, and with
    `rows` additional ones of the vocabulary."""
    model, found = transformers_model(configured()["model"], shipped_weights()), []
    for index in range(len(made)):
        tokens = torch.from_numpy(made.tokens[made.offsets[index] : made.offsets[index + 1]]).long()
        with torch.no_grad():
            logits = model(tokens[None, :-1]).logits[0]
        added = logits[:, -1:] if padding == "last_row" else torch.zeros(len(logits), 1)
        found.append(float(F.cross_entropy(torch.cat([logits, added.expand(-1, rows)], dim=1), tokens[1:])))
    return found
