"""The encoder of He et al. 2021, "DeBERTa: Decoding-enhanced BERT with disentangled attention", versions 1 to 3.

Its attention compares contents with relative positions. All other parts, and the heads, are as in `bert`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from txport.models.architecture import Architecture
from txport.models.architectures import bert
from txport.models.architectures.bert import Bert, BertConfig
from txport.models.config import LONGEST, choice, size
from txport.models.model import Model
from txport.models.ops import Ops
from txport.models.parts import (
    ACTIVATIONS,
    NORMS,
    Attention,
    Disentangled,
    DotProduct,
    Layer,
    PositionVectors,
)

ROLES = {"content_to_position": "key", "position_to_content": "query"}  # field -> role of the vectors of positions


@dataclass(frozen=True, kw_only=True, repr=False)
class DebertaConfig(BertConfig):
    """`BertConfig` with disentangled attention.

    Relative positions have vectors up to a distance of `reach` tokens, or none if it is 0. With `position_buckets`,
    each direction has so many vectors: half are for one distance each, and logarithmic buckets share the others.
    `position_norm` normalises the vectors. Queries are compared with them if `content_to_position`, keys if
    `position_to_content`; each comparison adds 1 to the divisor sqrt(terms x head size) of the scores. Layers project
    the vectors by matrices of their own, or with `shared_projections` by those of keys and queries. `positions` may be
    added to embeddings, too. If `kernel` is not 0, a convolution of so many tokens runs beside the first layer, with
    `kernel_groups` and `kernel_activation`.
    """

    WIDENS_FIRST = True
    RARE = BertConfig.RARE - {"positions"} | {"kernel", "kernel_groups", "kernel_activation"}
    vocab_size: int = size(128100)
    positions: str = choice("none", "learned")
    repeated: str = choice("runs")
    reach: int = size(512, least=0, most=LONGEST)
    position_buckets: int = size(256, least=0, most=1 << 12)
    position_norm: bool = True
    content_to_position: bool = True
    position_to_content: bool = True
    shared_projections: bool = True
    kernel: int = size(0, least=0, most=1 << 10)
    kernel_groups: int = size(1)
    kernel_activation: str = choice("tanh", "gelu", "gelu_tanh", "relu", "silu")
    pooler: str = choice("gelu", "tanh", "relu")
    cls_id: int = 1
    sep_id: int = 2
    mask_id: int = 128000

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        yield from super().problems()
        for name in ("buckets", "distinct_layers", "windows"):
            if getattr(self, name):
                yield f"{name} can't be combined with disentangled attention, got {getattr(self, name)}"
        if self.position_buckets and self.reach <= self.position_buckets // 2 + 1:
            both = f"reach {self.reach} for {self.position_buckets}"
            yield f"reach must be above half of the position_buckets + 1, got {both}"
        if self.kernel and not self.kernel % 2:
            yield f"kernel must be an odd number of tokens, got {self.kernel}"
        if self.d_model % self.kernel_groups:
            yield f"kernel_groups must divide d_model, got {self.kernel_groups} for {self.d_model}"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the vectors of positions, see `Disentangled`."""
        return tuple(role for name, role in ROLES.items() if getattr(self, name))


def build(config: DebertaConfig) -> Model:
    """Build a model of this config; its layers share the vectors of positions."""
    vectors = None
    if config.reach and config.roles:
        norm = NORMS["layer"](config.d_model, config.norm_epsilon) if config.position_norm else None
        vectors = PositionVectors(config.d_model, config.reach, config.position_buckets, config.max_length, norm)
    model = Bert(config, partial(_attention, config, vectors))
    if config.kernel:
        model.encoder[0] = Convolved(config, cast(Layer, model.encoder[0]))
        model.initialise()
    return model


def _attention(config: DebertaConfig, vectors: PositionVectors | None) -> Attention:
    head_size = config.d_model // config.heads
    scale = (head_size * (1 + len(config.roles))) ** -0.5
    own = not config.shared_projections
    both = None if vectors is None else Disentangled(config.d_model, config.heads, vectors, config.roles, own=own)
    core = DotProduct(config.heads, config.heads, scale, disentangled=both)
    attention = Attention(config.d_model, core, head_size, bias=config.attention_bias)
    if both is not None and not own:
        both.share(attention)
    return attention


class Convolved(Layer):
    """A layer beside a convolution of its input; the sum of both is normalised."""

    def __init__(self, config: DebertaConfig, layer: Layer) -> None:
        residuals = iter([layer.attention_residual, layer.feed_forward_residual])
        super().__init__(layer.attention, layer.feed_forward, lambda: next(residuals))
        width = config.d_model
        self.activation = config.kernel_activation
        self.convolution = nn.Conv1d(
            width, width, config.kernel, padding=config.kernel // 2, groups=config.kernel_groups
        )
        self.convolution_norm = NORMS["layer"](width, config.norm_epsilon)

    def forward(self, x: Tensor, ops: Ops, number: int) -> Tensor:
        """Run as layer `number` of its stack: (..., D) -> (..., D); padding is 0 for the convolution."""
        given = ops.whole(x) * ops.seen()[:, :, None].to(x.dtype)
        beside = ACTIVATIONS[self.activation](self.convolution(given.transpose(1, 2)).transpose(1, 2))
        found: Tensor = self.convolution_norm(super().forward(x, ops, number) + ops.lay_out(beside))
        return found


def hugging_face(config: DebertaConfig) -> dict[str, object]:
    """Return the `config.json` of a DeBERTa-v2, which Optimum and transformers.js support."""
    found = bert.hugging_face(config)
    types = [name for name, role in (("c2p", "key"), ("p2c", "query")) if role in config.roles]
    return found | {
        "model_type": "deberta-v2",
        "architectures": [f"DebertaV2{bert.NAMES[config.head].removeprefix('Bert')}"],
        "type_vocab_size": config.token_types or int(config.segment),
        "relative_attention": config.reach > 0,
        "max_relative_positions": config.reach or -1,
        "position_buckets": config.position_buckets or -1,
        "norm_rel_ebd": "layer_norm" if config.position_norm else "none",
        "pos_att_type": types,
        "share_att_key": config.shared_projections,
        "position_biased_input": config.positions == "learned",
        "pooler_hidden_act": config.pooler,
    }


def draw(rng: np.random.Generator) -> DebertaConfig:
    """Return a small random config of any variant."""
    values = bert.draw(rng).to_dict()
    for name in ("buckets", "farthest", "distinct_layers", "repeated", "windows", "rotary_base", "rotary_local_base"):
        values.pop(name, None)
    flags = ("position_norm", "content_to_position", "position_to_content", "shared_projections")
    choices = {name: str(rng.choice(DebertaConfig.choices()[name])) for name in ("positions", "kernel_activation")}
    buckets = int(rng.choice([0, 4, 6]))
    return DebertaConfig.from_dict(
        {
            **values,
            **choices,
            **{name: bool(rng.integers(2)) for name in flags},
            "position_buckets": buckets,
            "reach": buckets + int(rng.integers(1, 20)) if rng.integers(4) or buckets else 0,
            "kernel": int(rng.choice([0, 0, 1, 3])),
        }
    )


_TINY: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "feed_forward", "max_length"), 64),
    "d_model": 32,
    "heads": 4,
    "encoder_layers": 2,
    "segment": False,
    "norm_epsilon": 1e-7,
    "mask_id": 3,
    "reach": 24,
    "position_buckets": 8,
}
# `deberta-base` has the sizes of DeBERTa-v3-base; the tiny ones are for tests and first tries, the second with what
# only larger models of version 2 and those of version 1 have.
PRESETS = {
    "deberta-tiny": DebertaConfig(**_TINY, head="tokens"),
    "deberta-wide-tiny": DebertaConfig(
        **(_TINY | {"position_buckets": 0, "segment": True}),
        positions="learned",
        position_norm=False,
        shared_projections=False,
        kernel=3,
        head="labels",
        labels=("no", "yes"),
    ),
    "deberta-base": DebertaConfig(segment=False, norm_epsilon=1e-7, head="hidden"),
}
ARCHITECTURE = Architecture(config=DebertaConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw)
