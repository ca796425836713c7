"""Attention over the source that is scored as Bahdanau et al. 2015 do: by the paper's formula, in every form."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtimes.driven import ENGINES
from tests.seeded import bundle_of, saved, seeded_model
from txport import runtimes
from txport.exporters.check import operators
from txport.models import architecture
from txport.models.architectures.additive import PRESETS
from txport.models.architectures.transformer import TransformerConfig
from txport.models.ops import padding_mask
from txport.models.parts import additive as masking
from txport.targets.ports import ENCODER, STEP

TINY = PRESETS["additive-tiny"]


@torch.no_grad()
def test_scores_are_the_papers() -> None:
    core = seeded_model(TINY).double().cross_attention(0).core
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 4, size, 8, generator=random).double() for size in (3, 6, 6))
    lengths = torch.tensor([6, 2])
    mixed, weights = core(query, key, value, masking(padding_mask(lengths, 6), query.dtype)[:, None, None, :])
    for row, length in enumerate(lengths.tolist()):
        for head in range(4):
            v = core.score[head].flatten()
            for i in range(3):
                scores = torch.stack([v @ torch.tanh(query[row, head, i] + key[row, head, j]) for j in range(length)])
                expected = scores.softmax(0)
                torch.testing.assert_close(weights[row, head, i, :length], expected, rtol=0, atol=1e-12)
                assert not weights[row, head, i, length:].any()
                torch.testing.assert_close(
                    mixed[row, head, i], expected @ value[row, head, :length], rtol=0, atol=1e-12
                )


def test_only_the_attention_over_the_source_is_plain(tmp_path: Path) -> None:
    bundle = bundle_of(saved(TINY, tmp_path / "model"), tmp_path / "bundle")
    encoder, step = (operators(bundle.file(role)) for role in (ENCODER, STEP))
    assert encoder["com.microsoft.MultiHeadAttention"] == TINY.encoder_layers
    assert step["com.microsoft.GroupQueryAttention"] == TINY.decoder_layers
    assert (step["com.microsoft.MultiHeadAttention"], step["Softmax"]) == (0, TINY.decoder_layers)
    # keys of the source are projected once, in the encoder: a step has query, output, packed query, key and value,
    # output, and two maps of the feed-forward
    assert step["Gemm"] == 6 * TINY.decoder_layers + 1


@pytest.mark.parametrize("target", ENGINES)
def test_a_source_says_the_same_beside_longer_ones(target: str, tmp_path: Path) -> None:
    runtime = runtimes.load(ENGINES[target], bundle_of(saved(TINY, tmp_path / "model"), tmp_path / "bundle", target))
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 60, (3, 9))
    lengths = np.array([9, 2, 5])
    tokens = rng.integers(3, 60, (6, 3))
    together = runtime.start(ids, lengths, max_length=6)
    batch_logits = []
    for each in tokens:
        scores, together = runtime.step(each, together)
        batch_logits.append(scores.values.copy())
    for row, length in enumerate(lengths):
        alone = runtime.start(ids[row : row + 1, :length].copy(), lengths[row : row + 1], max_length=6)
        for place, each in enumerate(tokens):
            scores, alone = runtime.step(each[row : row + 1], alone)
            np.testing.assert_allclose(scores.values[0], batch_logits[place][row], rtol=0, atol=1e-5)


def test_all_else_is_as_in_transformer() -> None:
    config = dataclasses.asdict(TINY)
    others = architecture.find("transformer").build(TransformerConfig(**config))
    own = {name: each.shape for name, each in seeded_model(TINY).named_parameters() if not name.endswith("core.score")}
    assert own == {name: each.shape for name, each in others.named_parameters()}
