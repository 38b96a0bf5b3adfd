"""The model: mask, padding choices, recompute, initial weights."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from flagbench_cases.cases.glm.data import Batch, collate
from flagbench_cases.cases.glm.model import (
    PADDED_EVALUATION,
    GlmForCloze,
    block_mask,
    cloze_loss,
    config_from,
    mask_choices,
)
from flagbench_cases.shared.manifests import load_case
from unit.cases.glm.small_glm import LENGTH, examples, settled

pytestmark = pytest.mark.image

REFERENCE = load_case("glm")["presets"]["reference"]["model"]
DRY = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
SMALL = {
    **REFERENCE,
    **DRY,
    "layers": 2,
    "dim": 12,
    "heads": 3,
    "vocab_size": 40,
    "positions": LENGTH + 1,
    "initializer_range": 0.4,
    "recompute": False,
}


def small(**changed: Any) -> GlmForCloze:
    """A small model with weights, biases and gains that are all random."""
    torch.manual_seed(changed.pop("seed", 0))
    model = GlmForCloze(config_from({**SMALL, **changed}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ragged(choices: list[int], seed: int) -> Batch:
    """Random examples of as many choices as `choices` says, padded to LENGTH and the largest number of choices."""
    made = examples(choices, seed)
    return collate([made[index] for index in range(len(choices))])


def test_part_a_is_seen_whole_and_the_answer_from_its_left() -> None:
    mask = block_mask(torch.tensor([2, 4, 0]), torch.zeros(3, 4, 8))
    assert mask.shape == (3, 1, 4, 4)
    assert mask[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert bool((mask[1] == 1).all())
    assert torch.equal(mask[2, 0], torch.ones(4, 4).tril())


def test_padding_choices_get_no_probability_and_no_gradient() -> None:
    scores = torch.tensor([[-3.0, -1.0, -2.0], [-5.0, 99.0, 99.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    loss = cloze_loss(scores, mask, torch.zeros(2, dtype=torch.long))
    assert loss.item() == pytest.approx(float(-torch.log_softmax(torch.tensor([-3.0, -1.0, -2.0]), 0)[0]) / 2)
    loss.backward()
    assert scores.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert mask_choices(scores, mask, PADDED_EVALUATION)[1].tolist() == [-5.0, -1e9, -1e9]


def drawn_step(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The loss of a step from one seed, what is drawn after it, and its gradients."""
    model.zero_grad()
    torch.manual_seed(9)
    loss = cloze_loss(model(*batch[:5]), batch.choice_mask, batch.labels)
    loss.backward()
    return loss.detach(), torch.rand(3), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("dropouts", [{}, dict.fromkeys(DRY, 0.3)])
def test_recompute_changes_no_loss_and_no_gradient(dropouts: dict[str, float]) -> None:
    """With dropout too: what is computed again drops the same activations."""
    batch, results = ragged([2, 3], 5), []
    for recompute in (False, True):
        model = small(recompute=recompute, **dropouts)
        results.append(settled(functools.partial(drawn_step, model, batch)))
    (loss, after, gradients), (loss_again, after_again, gradients_again) = results
    assert torch.equal(loss, loss_again)
    assert torch.equal(after, after_again)
    for one, two in zip(gradients, gradients_again):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_initial_weights_have_the_published_spread() -> None:
    torch.manual_seed(0)
    model = GlmForCloze(config_from({**SMALL, "dim": 96, "layers": 8, "initializer_range": 0.02}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:  # the gain of a layer norm
            assert bool((parameter == 1).all()), name
        else:
            into_stream = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
            expected = 0.02 / 4 if into_stream else 0.02
            assert float(parameter.detach().std()) == pytest.approx(expected, rel=0.1), name
