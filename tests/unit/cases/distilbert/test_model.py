"""The model beside Hugging Face's own: where dropout is drawn, initial weights, the published size.

Losses are compared with the publisher's loop in tests/engine/test_reenact.py.
"""

from __future__ import annotations

import pytest
import torch

from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from
from flagbench_cases.shared.manifests import load_case

pytestmark = pytest.mark.image

REFERENCE = load_case("distilbert")["presets"]["reference"]["model"]
SMALL = {**REFERENCE, "layers": 2, "dim": 48, "heads": 3, "hidden_dim": 80, "vocab_size": 97, "positions": 40}


def test_reference_model_has_the_published_size() -> None:
    model = DistilBertClassifier(config_from(REFERENCE))
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_955_010


def test_dropout_is_drawn_where_hugging_face_draws_it() -> None:
    """From one state of the generator both drop the same activations, so their training-mode logits are equal."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    ours = DistilBertClassifier(config_from(SMALL))
    theirs = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            n_layers=2,
            dim=48,
            n_heads=3,
            hidden_dim=80,
            vocab_size=97,
            max_position_embeddings=40,
            seq_classif_dropout=SMALL["classifier_dropout"],
            attn_implementation="eager",
        )
    ).train()
    theirs.load_state_dict(ours.state_dict())
    mask = (torch.arange(20) < torch.tensor([[7], [20]])).long()
    ids = torch.randint(1, 97, mask.shape) * mask
    torch.manual_seed(5)
    logits = ours(ids, mask)
    torch.manual_seed(5)
    expected = theirs(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(logits, expected, rtol=1e-5, atol=1e-6)


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
