"""What a trained model is asked: its loss on blocks it was not trained on, and MMLU.

Every rank answers its share, each block and question once at any number of ranks. Without autocast, as the publisher
evaluates: the weights are of the precision already, and peft casts for the adapters that are not (in bf16). MMLU goes
one question at a time, as published.
"""

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

from flagbench_cases.cases.llama2_7b_lora.data import batch_of
from flagbench_cases.cases.llama2_7b_lora.engine import loss_of

Progress = Callable[[int, int], None]


def total(values: List[float], device: torch.device, world: int) -> List[float]:
    """The sums of each value over all ranks."""
    shares = torch.tensor(values, dtype=torch.float64, device=device)
    if world > 1:
        dist.all_reduce(shares)
    return [float(value) for value in shares.tolist()]


def share(length: int, rank: int, world: int) -> range:
    """The indices this rank takes: every one once over all ranks."""
    return range(rank, length, world)


@torch.no_grad()
def validation_loss(
    module: Any, blocks: Any, batch_size: int, device: torch.device, place: Tuple[int, int], progress: Progress
) -> Optional[float]:
    """The mean loss over all blocks, nats per token, with dropout off; None where there are none.

    Blocks have one length, so the mean over blocks is that over tokens. `place` is (rank, world).
    """
    module.eval()
    indices = share(len(blocks), *place)
    summed = 0.0
    for start in range(0, len(indices), batch_size):
        part = indices[start : start + batch_size]
        batch = {name: tensor.to(device) for name, tensor in batch_of([blocks[index] for index in part]).items()}
        summed += float(loss_of(module, batch)) * len(part)
        progress(start + len(part), len(indices))
    module.train()
    loss, count = total([summed, float(len(indices))], device, place[1])
    return loss / count if count else None


@torch.no_grad()
def mmlu_accuracy(
    module: Any, questions: Any, device: torch.device, place: Tuple[int, int], training: bool, progress: Progress
) -> float:
    """The share of questions whose answer is the most likely of all tokens after the prompt.

    `training` leaves dropout on, as the publisher does. `place` is (rank, world).
    """
    module.train(training)
    answers = [int(token) for token in questions.answer_tokens]
    indices = share(len(questions), *place)
    correct = 0
    for done, index in enumerate(indices, start=1):
        question = questions[index]
        tokens = question.tokens.to(device)[None]
        logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits  # [1, n, V]
        correct += int(logits[0, -1].argmax()) == answers[question.answer]
        progress(done, len(indices))
    module.train()
    right, count = total([float(correct), float(len(indices))], device, place[1])
    return right / count
