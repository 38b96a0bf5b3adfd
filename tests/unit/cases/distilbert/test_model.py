"""The model against Hugging Face's own: equal logits and gradients, the published size, the FLOPs of its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from
from flagbench_cases.shared.config import load_case
from flagbench_core.flops import batch_of, distilbert

transformers = pytest.importorskip("transformers", reason="the oracle is Hugging Face's implementation")

pytestmark = pytest.mark.image

DRY = {"dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}
REFERENCE = load_case("distilbert")["presets"]["reference"]["model"]
SMALL = {**REFERENCE, "layers": 2, "dim": 48, "heads": 3, "hidden_dim": 80, "vocab_size": 97, "positions": 40}
TOLERANCE = 1e-5  # of a tensor's maximum norm


def hugging_face(section: dict[str, Any]) -> torch.nn.Module:
    config = transformers.DistilBertConfig(
        n_layers=section["layers"],
        dim=section["dim"],
        n_heads=section["heads"],
        hidden_dim=section["hidden_dim"],
        vocab_size=section["vocab_size"],
        max_position_embeddings=section["positions"],
        num_labels=section["labels"],
        dropout=section["dropout"],
        attention_dropout=section["attention_dropout"],
        seq_classif_dropout=section["classifier_dropout"],
        attn_implementation="eager",
    )
    return transformers.DistilBertForSequenceClassification(config)


def twins(section: dict[str, Any], seed: int) -> tuple[DistilBertClassifier, torch.nn.Module]:
    """Ours and theirs with the same weights, wide enough that softmax and GELU leave their linear range."""
    torch.manual_seed(seed)
    ours, theirs = DistilBertClassifier(config_from(section)), hugging_face(section)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        ours.distilbert.embeddings.word_embeddings.weight[section["pad_token_id"]].zero_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def ragged(section: dict[str, Any], lengths: list[int], width: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Random ids padded on the right, their mask and labels: [B, T], [B, T], [B]."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, section["vocab_size"], mask.shape, generator=generator)
    return ids * mask + section["pad_token_id"] * (1 - mask), mask, torch.arange(len(lengths)) % section["labels"]


def assert_close(name: str, ours: torch.Tensor, theirs: torch.Tensor, scale: float) -> None:
    error = float((ours.detach() - theirs.detach()).abs().max())
    assert error <= TOLERANCE * scale, f"{name} differs by {error:.2g}, {error / scale:.2g} of its norm"


def assert_same_logits_and_gradients(section: dict[str, Any], lengths: list[int], width: int, seed: int) -> None:
    ours, theirs = twins(section, seed)
    ids, mask, labels = ragged(section, lengths, width, seed)
    a, b = ours(ids, mask), theirs(input_ids=ids, attention_mask=mask).logits
    assert_close("logits", a, b, float(b.detach().abs().max()))
    F.cross_entropy(a, labels).backward()
    F.cross_entropy(b, labels).backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert {name for name, _ in ours.named_parameters()} == set(expected)
    for name, parameter in ours.named_parameters():
        # A key's bias moves all scores of a query alike, and softmax does not see that: its gradient is zero but
        # for rounding, so the gradient of the weight beside it is the scale.
        scale = expected[name.replace("k_lin.bias", "k_lin.weight")]
        assert_close(name, parameter.grad, expected[name], float(scale.abs().max()))


@pytest.mark.parametrize("seed", range(5))
def test_small_model_equals_the_oracle_on_ragged_batches(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    width = int(torch.randint(4, 41, (), generator=generator))
    lengths = torch.randint(1, width + 1, (6,), generator=generator).tolist()
    assert_same_logits_and_gradients({**SMALL, **DRY}, lengths, width, seed)


def test_reference_model_has_the_published_size() -> None:
    model = DistilBertClassifier(config_from(REFERENCE))
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_955_010


def test_dropout_is_drawn_where_the_oracle_draws_it() -> None:
    """From one state of the generator both drop the same activations, so their training-mode logits are equal."""
    ours, theirs = twins(SMALL, seed=4)
    theirs.train()
    ids, mask, _ = ragged(SMALL, [7, 20], 20, seed=4)
    torch.manual_seed(5)
    a = ours(ids, mask)
    torch.manual_seed(5)
    b = theirs(input_ids=ids, attention_mask=mask).logits
    assert_close("logits", a, b, float(b.detach().abs().max()))


def test_initial_weights() -> None:
    torch.manual_seed(0)
    ours = DistilBertClassifier(config_from(SMALL))
    for name, parameter in ours.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:  # the gain of a layer norm
            assert bool((parameter == 1).all()), name
        elif parameter.numel() > 1000:
            assert float(parameter.detach().std()) == pytest.approx(SMALL["initializer_range"], rel=0.1), name
    assert not ours.distilbert.embeddings.word_embeddings.weight[SMALL["pad_token_id"]].any()


@pytest.mark.skipif(
    not hasattr(torch, "compile"),  # torch 2 brought both
    reason="torch.utils.flop_counter and building on the meta device came with torch 2",
)
def test_flops_equal_what_torch_counts_at_the_reference_size() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    batch, length = 4, 512
    with torch.device("meta"):
        model = DistilBertClassifier(config_from(REFERENCE))
        ids = torch.ones(batch, length, dtype=torch.long)
        labels = torch.zeros(batch, dtype=torch.long)
    expected = distilbert(REFERENCE, batch_of(batch, length)).forward
    with torch.device("meta"), FlopCounterMode(display=False) as forward:
        loss = F.cross_entropy(model(ids, torch.ones_like(ids)), labels)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert forward.get_total_flops() == pytest.approx(expected, rel=1e-3)
    assert forward.get_total_flops() + backward.get_total_flops() == pytest.approx(3 * expected, rel=1e-3)
