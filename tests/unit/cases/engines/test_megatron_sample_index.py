"""Where blocks of tokens begin, compared with the extension of the installed Megatron-Core."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from flagbench_cases.engines.megatron import sample_index

pytestmark = pytest.mark.image


@pytest.mark.parametrize("seed", range(20))
def test_blocks_begin_where_megatron_core_has_them(seed: int) -> None:
    helpers = pytest.importorskip("megatron.core.datasets.helpers")
    generator = np.random.RandomState(seed)
    sizes = generator.randint(1, 40, size=generator.randint(1, 30)).astype(np.int32)
    epochs, length = generator.randint(1, 4), generator.randint(2, 50)
    documents = np.concatenate([generator.permutation(len(sizes)) for _ in range(epochs)]).astype(np.int32)
    tokens = int(sizes.sum())
    if epochs * tokens <= length:
        epochs, documents = 1, np.zeros(1, np.int32)
        sizes, tokens = np.array([length + 1], np.int32), length + 1
    found = sample_index.build(sizes, documents, length, epochs, tokens)
    expected = helpers.build_sample_idx(sizes, documents, length, epochs, tokens, True, 1)
    assert found.tolist() == expected.tolist()


def test_megatron_core_s_own_extension_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be imported, Megatron-Core gets our function instead."""
    name = "megatron.core.datasets.helpers"
    pytest.importorskip("megatron.core.datasets")
    own = object()
    monkeypatch.setitem(sys.modules, name, own)
    sample_index.provide()
    assert sys.modules[name] is own
    monkeypatch.setitem(sys.modules, name, None)
    sample_index.provide()
    assert sys.modules[name].build_sample_idx is sample_index.build
