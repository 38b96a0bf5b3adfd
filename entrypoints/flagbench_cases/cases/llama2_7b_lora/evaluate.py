"""Evaluates a trained model: its validation loss, and its accuracy on MMLU.

Blocks and questions are divided among the ranks without repetition. As published, there is no autocast (the weights
already have the precision; in bf16, peft casts for the adapters), and MMLU questions are evaluated one at a time.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

from flagbench_cases.cases.llama2_7b_lora.data import batch_of
from flagbench_cases.cases.llama2_7b_lora.optimizer import loss_of

ReportProgress = Callable[[int, int], None]


def sum_over_ranks(values: list[float], device: torch.device, world: int) -> list[float]:
    """Return the sum of each value over all ranks."""
    shares = torch.tensor(values, dtype=torch.float64, device=device)
    if world > 1:
        dist.all_reduce(shares)
    return [float(value) for value in shares.tolist()]


def share(length: int, rank: int, world: int) -> range:
    """Return the indices of this rank; every index below `length` is on exactly one rank."""
    return range(rank, length, world)


@torch.no_grad()
def validation_loss(
    module: Any, blocks: Any, batch_size: int, device: torch.device, place: tuple[int, int], progress: ReportProgress
) -> float | None:
    """Return the mean loss over all blocks, nats per token, without dropout; None if there are no blocks.

    All blocks have the same length, so the mean over blocks is the mean over tokens. `place` is (rank, world).
    """
    module.eval()
    indices = share(len(blocks), *place)
    loss_sum = 0.0
    for start in range(0, len(indices), batch_size):
        batch_indices = indices[start : start + batch_size]
        batch = batch_of([blocks[index] for index in batch_indices])
        loss = loss_of(module, {name: tensor.to(device) for name, tensor in batch.items()})
        loss_sum += float(loss) * len(batch_indices)
        progress(start + len(batch_indices), len(indices))
    module.train()
    total_loss, count = sum_over_ranks([loss_sum, float(len(indices))], device, place[1])
    return total_loss / count if count else None


@torch.no_grad()
def mmlu_accuracy(
    module: Any,
    questions: Any,
    device: torch.device,
    place: tuple[int, int],
    training: bool,
    progress: ReportProgress,
) -> float:
    """Return the fraction of questions whose right answer is the most likely next token.

    `training` keeps dropout on, as published. `place` is (rank, world).
    """
    module.train(training)
    answer_tokens = [int(token) for token in questions.answer_tokens]
    indices = share(len(questions), *place)
    correct = 0
    for done, index in enumerate(indices, start=1):
        question = questions[index]
        tokens = question.tokens.to(device)[None]
        logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits  # [1, n, V]
        correct += int(logits[0, -1].argmax()) == answer_tokens[question.answer]
        progress(done, len(indices))
    module.train()
    right, count = sum_over_ranks([float(correct), float(len(indices))], device, place[1])
    return right / count
