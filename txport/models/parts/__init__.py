"""Building blocks of Transformers. Each is defined once: PyTorch runs it as the reference, tracing it gives a graph.

Memory layout and caches are handled by `Ops` (models/ops.py).
Letters in shape comments: B batch, T new tokens, S tokens attended to, N heads, G key/value heads, H head size,
D model size. "..." are the dims of activations: (B, T), or (B x T) with all tokens of a batch in a row.
"""

from txport.models.parts.attention import Additive, Attention, Disentangled, DotProduct, Window, additive
from txport.models.parts.embedding import Embedding, Frames
from txport.models.parts.experts import Experts
from txport.models.parts.layer import Layer, Residual
from txport.models.parts.linear import ACTIVATIONS, FeedForward, GatedFeedForward, Linear, SoftCap
from txport.models.parts.norms import NORM_TYPES, NORMS, RMSNorm, UnbiasedNorm
from txport.models.parts.positions import (
    Alibi,
    Layout,
    Pairing,
    PositionVectors,
    RelativeBias,
    RelativeVectors,
    Rotary,
    RoundedAlibi,
    bucket_table,
    constant_table,
    kept_by_yarn,
    sinusoids,
    speeds,
    unflatten,
)

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "NORM_TYPES",
    "Additive",
    "Alibi",
    "Attention",
    "Disentangled",
    "DotProduct",
    "Embedding",
    "Experts",
    "FeedForward",
    "Frames",
    "GatedFeedForward",
    "Layer",
    "Layout",
    "Linear",
    "Pairing",
    "PositionVectors",
    "RMSNorm",
    "RelativeBias",
    "RelativeVectors",
    "Residual",
    "Rotary",
    "RoundedAlibi",
    "SoftCap",
    "UnbiasedNorm",
    "Window",
    "additive",
    "bucket_table",
    "constant_table",
    "kept_by_yarn",
    "sinusoids",
    "speeds",
    "unflatten",
]
