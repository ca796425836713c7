"""The Transformer of Shaw, Uszkoreit and Vaswani 2018, "Self-attention with relative position representations".

Each layer learns a vector per relative position, up to a limit, which is added to the keys, and another, which is added
to the values. All other parts are as in `transformer`; positions need not be added to embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from txport.models.architecture import Architecture
from txport.models.architectures.transformer import SMALL, Transformer, TransformerConfig, drawn_values, hugging_face
from txport.models.config import choice, size
from txport.models.facts import EXCLUSIVE
from txport.models.heads import TEXT
from txport.models.model import Model
from txport.models.parts import DotProduct, RelativeVectors


@dataclass(frozen=True, kw_only=True, repr=False)
class RelativeConfig(TransformerConfig):
    """`TransformerConfig`, with relative positions in self-attention.

    Distances from `farthest` tokens on share one vector per direction. `relative_values`: there are vectors for values
    too, as in the paper, not only for keys. `positions` are added to embeddings in addition; the paper has none. The
    only head is "text".
    """

    farthest: int = size(16, most=1 << 12)
    relative_values: bool = True
    positions: str = choice("none", "sinusoidal", "learned")
    head: str = choice(TEXT)
    problem_type: str = choice(EXCLUSIVE)  # of labels, which it does not have


def build(config: RelativeConfig) -> Model:
    """Build a model of this config; the heads of a layer share its vectors, and each layer has separate ones."""
    return Transformer(config, own=relative)


def relative(config: RelativeConfig) -> DotProduct:
    """Return a self-attention with a vector per relative position for keys, and for values if the config has them."""
    vectors = partial(RelativeVectors, config.head_size, config.farthest)
    return DotProduct(
        config.heads,
        config.heads,
        config.head_size**-0.5,
        relative_keys=vectors(),
        relative_values=vectors() if config.relative_values else None,
    )


def draw(rng: np.random.Generator) -> RelativeConfig:
    """Return a small random config of any variant."""
    values = drawn_values(rng, RelativeConfig.choices())
    return RelativeConfig(**values, farthest=int(rng.integers(1, 12)), relative_values=bool(rng.integers(2)))


# `relative-base` has the sizes of the paper's base model; `relative-tiny` is for tests and first tries.
PRESETS = {
    "relative-tiny": RelativeConfig(**SMALL, farthest=8),
    "relative-base": RelativeConfig(source_vocab_size=32000, target_vocab_size=32000),
}
ARCHITECTURE = Architecture(config=RelativeConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw)
