"""T5 against transformers' own: buckets of distances, and the config that it reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import T5Config as TheirConfig
from transformers import T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from txport.models.architectures.t5 import ARCHITECTURE, T5Config, build, hugging_face
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
    assert len(own) == len(dict(T5ForConditionalGeneration(theirs).named_parameters()))
    assert ARCHITECTURE.config is T5Config
