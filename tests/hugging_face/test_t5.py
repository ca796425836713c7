"""T5 against transformers' own: buckets of distances, logits, and the tokens that `generate` finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import T5Config as TheirConfig
from transformers.models.t5.modeling_t5 import T5Attention

from tests.architectures.sampled import recorded
from tests.hugging_face import t5
from txport.models.architectures.t5 import ARCHITECTURE, T5Config, build, hugging_face
from txport.models.checkpoint import load_checkpoint
from txport.models.parts import bucket_table

FARTHEST = 5000


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("buckets", [4, 8, 12, 32, 36, 64, 128])
def test_every_distance_has_their_bucket(buckets: int, both_ways: bool) -> None:
    distances = torch.arange(-FARTHEST, FARTHEST + 1)
    for farthest in (buckets // 2 + 1, 50, 128, 200, 1024):
        if farthest > buckets // 2:
            how = {"bidirectional": both_ways, "num_buckets": buckets, "max_distance": farthest}
            expected = T5Attention._relative_position_bucket(distances, **how)
            found = bucket_table(buckets, farthest, FARTHEST, both_ways=both_ways)
            for at in (found != expected).nonzero()[:, 0].tolist():  # their logarithm is the processor's
                assert abs(int(found[at] - expected[at])) == 1
                assert is_edge(abs(int(distances[at])), buckets // 2 if both_ways else buckets, farthest)


def is_edge(distance: int, buckets: int, farthest: int) -> bool:
    """Whether a bucket begins at a distance but for the last bits of fp32."""
    own = buckets // 2
    place = math.log(distance / own) / math.log(farthest / own) * (buckets - own)
    return abs(place - round(place)) < 1e-5


@pytest.mark.parametrize("variant", t5.VARIANTS)
@torch.inference_mode()
def test_logits_are_theirs_and_as_recorded(variant: str) -> None:
    model = load_checkpoint(str(t5.FOLDER / variant)).model
    ids, mask = t5.padded()
    said = t5.said(t5.model_of(variant))
    logits = model(ids, mask.sum(1), t5.targets())
    assert said["logits"].std() > 0.5  # a model that says nothing would agree with itself
    np.testing.assert_allclose(logits.numpy(), said["logits"], rtol=0, atol=1e-4)
    with np.load(t5.FOLDER / variant / "expected.npz") as recorded:
        for name, expected in said.items():
            np.testing.assert_allclose(recorded[name], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", t5.VARIANTS)
def test_samples_are_as_recorded(variant: str) -> None:
    assert t5.samples(t5.model_of(variant)) == recorded(t5.FOLDER / variant / t5.SAMPLES)


@pytest.mark.parametrize(
    "changes",
    [{}, {"gated": True, "activation": "gelu_tanh"}, {"gated": True, "activation": "silu", "tied": False}],
    ids=["plain", "gated gelu", "gated silu"],
)
def test_transformers_reads_our_config_json(changes: dict[str, Any]) -> None:
    config = T5Config(vocab_size=30, d_model=16, heads=2, head_size=8, **changes)
    theirs = TheirConfig(**hugging_face(config))
    assert (theirs.is_gated_act, theirs.scale_decoder_outputs) == (config.gated, config.scale != 1)
    assert theirs.dense_act_fn == {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)
    own = {name: each.shape for name, each in build(config).named_parameters()}
    own.pop("projection.weight", None)  # a new model of transformers 5 always has one matrix
    assert len(own) == len(t5.tensors(t5.T5ForConditionalGeneration(theirs)))
    assert ARCHITECTURE.config is T5Config
