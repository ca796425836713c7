"""The parts of a model in words."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = {"attention": "self-attention", "cross_attention": "cross-attention", "feed_forward": "feed-forward"}
WHOLE = {
    "source_embedding": "encoder, embedding",
    "target_embedding": "decoder, embedding",
    "encoder_norm": "encoder, last norm",
    "decoder_norm": "decoder, last norm",
    "projection": "decoder, projection to the vocabulary",
}
LEAVES = {"inner": "first linear map", "outer": "second linear map", "output": "output map"}


def describe(modules: Sequence[str]) -> str:
    """`decoder.1.attention.query` -> `decoder layer 1, self-attention, query`; layers count from 0, as in names."""
    first, *rest = modules[0].split(".")
    if first in WHOLE:
        return WHOLE[first]
    if first in ("present", "cross"):
        side = "cross-attention" if first == "cross" or "encoder" in rest else "self-attention"
        return f"decoder layer {rest[0]}, {side}, cached {rest[-1]}s"
    if len(rest) < 3:
        return modules[0]
    layer = f"{first} layer {rest[0]}"
    if rest[1].endswith("_residual"):
        return f"{layer}, norm of {BLOCKS[rest[1].removesuffix('_residual')]}"
    leaves = [name.rpartition(".")[2] for name in modules]
    return f"{layer}, {BLOCKS[rest[1]]}, {' and '.join(LEAVES.get(leaf, leaf) for leaf in leaves)}"


def block_of(module: str) -> str:
    """`decoder.1.attention.output` -> `decoder layer 1, self-attention`."""
    return describe([module]).rpartition(", ")[0]
