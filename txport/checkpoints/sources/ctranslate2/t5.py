"""T5 and mT5, with relative position biases."""

from __future__ import annotations

import math
from pathlib import Path

from txport.checkpoints.family import Published
from txport.checkpoints.sources.ctranslate2.layers import Parts, Stack, refuse, require_alike, whole
from txport.checkpoints.sources.ctranslate2.tensors import GATED, Known
from txport.checkpoints.sources.ctranslate2.vocabulary import read_vocabulary
from txport.checkpoints.sources.trainers import UNBOUNDED, id_of
from txport.errors import ConfigError
from txport.models.rules import Drop, Rename, Rule

BIAS = "self_attention/relative_attention_bias"
SIDES = ("encoder", "decoder")
ALIKE = ("vocabulary", "width", "heads", "inner", "activation", "is_gated")
RULES: tuple[Rule, ...] = (
    Drop(rf"(encoder|decoder)\.[1-9]\d*\.{BIAS}$"),  # the same as in the first layer
    Rename(rf"\.{BIAS}$", ".attention.core.bias.weight"),
)


def is_t5(parts: Parts) -> bool:
    """Return whether there are relative position biases."""
    return any(parts.has(f"{side}/layer_0/{BIAS}") for side in SIDES)


def t5(parts: Parts, config: Published, folder: Path) -> Known:
    """Return the model as `t5`; raise `ConfigError` for unsupported features."""
    encoder, decoder = (parts.stack(side, is_scaled=False) for side in SIDES)
    parts.require("encoder/embeddings_merge", 0)
    parts.require("decoder/start_from_zero_embedding", 0)
    for name in ALIKE:
        require_alike(name, getattr(encoder, name), getattr(decoder, name))
    for stack in (encoder, decoder):
        _require_norms(stack)
    head_sizes = {_head_size(parts, side, encoder.heads) for side in SIDES}
    distances = {_distances(parts, side) for side in SIDES}
    if len(head_sizes) > 1 or len(distances) > 1:
        raise ConfigError(f"sizes of heads {sorted(head_sizes)} and distances {sorted(distances)} must be alike")
    ((buckets, farthest),) = distances
    rows = [read_vocabulary(folder, side) for side in ("source", "target")]
    end, start = (id_of(rows[1], config.get(name), name) for name in ("eos_token", "decoder_start_token"))
    require_alike("eos_token in sources and targets", rows[0].get(config.get("eos_token")), end)
    values = {
        "vocab_size": encoder.vocabulary,
        "d_model": encoder.width,
        "heads": encoder.heads,
        "head_size": head_sizes.pop(),
        "feed_forward": encoder.inner,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "max_length": UNBOUNDED,
        "buckets": buckets,
        "farthest": farthest,
        "activation": encoder.activation,
        "gated": encoder.is_gated,
        "tied": _is_tied(parts),
        "scaled": _is_scaled(parts, encoder.width),
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-6),
        "pad_id": start,
        "eos_id": end,
    }
    rules = (*RULES, *GATED) if encoder.is_gated else RULES
    return Known("t5", values, (encoder.vocabulary, decoder.vocabulary), rules)


def _require_norms(stack: Stack) -> None:
    refuse(stack, "positions", "embedding_norm", "is_scaled", "head_norm", "window")
    require_alike("heads and num_heads_kv", stack.heads, stack.key_heads)
    if not stack.is_rms or stack.norm != "pre" or not stack.final_norm:
        raise ConfigError("attention biases need RMSNorm before the sublayers and at the end")


def _head_size(parts: Parts, side: str, heads: int) -> int:
    rows = parts.shape(f"{side}/layer_0/self_attention/linear_0/weight")[0]
    if rows % (3 * heads):
        raise ConfigError(f"{rows} rows of queries, keys and values can't be those of {heads} heads")
    return rows // (3 * heads)


def _distances(parts: Parts, side: str) -> tuple[int, int]:
    """Return the number of buckets and the maximum distance; all layers must share their biases."""
    names = [f"{side}/layer_{number}/{BIAS}" for number in range(parts.number_of_layers(side))]
    if not parts.are_one(*names):
        raise ConfigError(f"{names[-1]} differs from that of layer 0, as in UMT5, which is not supported")
    farthest = parts.of_layers(side, "relative_attention_max_distance", 128)
    return parts.shape(names[0])[0], whole("relative_attention_max_distance", farthest)


def _is_tied(parts: Parts) -> bool:
    """Return whether the projection is the embedding, which both sides share."""
    source, target = (
        next((name for name in names if parts.has(name)), names[0])
        for names in (("encoder/embeddings/weight", "encoder/embeddings_0/weight"), ("decoder/embeddings/weight",))
    )
    if not parts.are_one(source, target):
        raise ConfigError("a T5 must share the embeddings of sources and targets")
    return parts.are_one(target, "decoder/projection/weight")


def _is_scaled(parts: Parts, width: int) -> bool:
    """Return whether the decoder's states are scaled by 1 / sqrt(width) before the projection."""
    scale = parts.attribute("decoder/scale_outputs", 1)
    if math.isclose(scale, 1.0, rel_tol=1e-6):
        return False
    if not math.isclose(scale, width**-0.5, rel_tol=1e-6):
        raise ConfigError(f"decoder/scale_outputs {scale} is not supported; it must be 1.0 or {width**-0.5}")
    return True
