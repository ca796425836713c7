"""A Transformer with the additive cross-attention of Bahdanau, Cho and Bengio 2015: score = v tanh(q + k).

Queries and keys are projected, and keys of the source are cached, as in `transformer`. All other parts are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from txport.models.architecture import Architecture
from txport.models.architectures.transformer import SMALL, Transformer, TransformerConfig, drawn_values, hugging_face
from txport.models.config import choice
from txport.models.facts import EXCLUSIVE
from txport.models.heads import TEXT
from txport.models.model import Model
from txport.models.parts import Additive


@dataclass(frozen=True, kw_only=True, repr=False)
class AdditiveConfig(TransformerConfig):
    """The same fields as `TransformerConfig`; the only head is "text"."""

    head: str = choice(TEXT)
    problem_type: str = choice(EXCLUSIVE)  # of labels, which it does not have


def build(config: AdditiveConfig) -> Model:
    """Build a model of this config; each head has a separate vector v."""
    return Transformer(config, cross=additive)


def additive(config: AdditiveConfig) -> Additive:
    """Return an additive cross-attention."""
    return Additive(config.heads, config.head_size)


def draw(rng: np.random.Generator) -> AdditiveConfig:
    """Return a small random config of any variant."""
    return AdditiveConfig(**drawn_values(rng, AdditiveConfig.choices()))


# `additive-tiny` is for tests and first tries; `additive-base` has the sizes of `base`.
PRESETS = {
    "additive-tiny": AdditiveConfig(**SMALL),
    "additive-base": AdditiveConfig(source_vocab_size=32000, target_vocab_size=32000),
}
ARCHITECTURE = Architecture(config=AdditiveConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw)
