"""FlagPerf's DistilBERT loop again: Hugging Face's model, torch's AdamW, a host clock around each step.

The device is waited for once a step, by `loss.item()` between forward and backward. What it has still to do when the
clock stops is waited for in the next step. Loading and hand-over are outside of the clock.

Source: FlagPerf 1b5a0303, training/benchmarks/distilbert/pytorch (train/trainer.py and its configurations).
"""

import time
from typing import Any, Dict, Iterator, Optional

import torch
from torch.utils.data import DataLoader
from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_scheduler

from flagbench_cases.cases.distilbert import data as sst2


def build(sizes: Dict[str, Any]) -> Any:
    """Hugging Face's classifier with random weights and the one attention that the publisher's transformers had."""
    same = ("vocab_size", "dim", "hidden_dim", "dropout", "attention_dropout", "initializer_range")
    config = DistilBertConfig(
        **{name: sizes[name] for name in same},
        max_position_embeddings=sizes["positions"],
        n_layers=sizes["layers"],
        n_heads=sizes["heads"],
        seq_classif_dropout=sizes["classifier_dropout"],
        num_labels=sizes["labels"],
        attn_implementation="eager",
    )
    return DistilBertForSequenceClassification(config)


def steps(
    config: Dict[str, Any], device: torch.device, weights: Optional[Dict[str, Any]] = None
) -> Iterator[Optional[float]]:
    """The loss of each step of a resolved configuration, from random weights unless `weights` has others."""
    settings = config["train"]
    sentences = sst2.load(config["data"], config["model"], None, None, config["seed"]).train
    model = build(config["model"])
    if weights is not None:
        model.load_state_dict(weights)
    model.to(device)
    workers = config["data"]["workers"]
    loader = DataLoader(sentences, settings["batch_size"], shuffle=True, num_workers=workers)  # not pinned
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": settings["weight_decay"]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},  # biases, gains of norms
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"], betas=(0.9, 0.999), eps=1e-8)
    # To zero, a step for each batch.
    schedule = get_scheduler("linear", optimizer, 0, len(loader) * settings["max_epochs"])
    torch.manual_seed(config["seed"])  # of the order and of dropout
    value = None
    while True:
        for batch in loader:
            yield value
            ids, mask, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
            time.time()
            model.train()
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            value = loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            time.time()
