"""The weights of a CTranslate2 model in the layout of txport's architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from txport.checkpoints.sources.ctranslate2.binary import Binary
from txport.checkpoints.sources.source import no_defaults
from txport.checkpoints.sources.trainers import NEVER
from txport.checkpoints.weights.steps import Shape
from txport.checkpoints.weights.values import Weights
from txport.models.facts import Facts
from txport.models.generation import Defaults
from txport.models.rules import Constant, Rename, Rule, Split, Take


@dataclass(frozen=True)
class Known:
    """A model converted to txport's config.

    `rows` are the sizes of the source and target vocabularies. `grown` are the weights that get one more row, for a
    start token whose embedding is zeros.
    """

    architecture: str
    values: dict[str, object]
    rows: tuple[int, int]
    rules: tuple[Rule, ...] = ()
    grown: tuple[str, ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)  # weights of which only so many first rows are used
    led: Mapping[str, int] = field(default_factory=dict)  # weights that get so many unused rows at the start
    generation: Callable[[Facts], Defaults] = no_defaults


def opened(binary: Binary, known: Known) -> Weights:
    """Return the weights by their names in the file, with the rows that `known` adds or removes."""
    shapes = binary.shapes
    bias = "decoder/projection/bias"
    made: Shape = (0,)
    if bias in known.grown and bias not in shapes:
        made = shapes.get("decoder/projection/weight", (0,))[:1]
        shapes[bias] = made
    for name in known.grown:
        if shapes.get(name):
            shapes[name] = (shapes[name][0] + 1, *shapes[name][1:])
    for name, rows in known.led.items():
        if shapes.get(name):
            shapes[name] = (shapes[name][0] + rows, *shapes[name][1:])
    for name, rows in known.cut.items():
        if name in shapes:
            shapes[name] = (min(rows, shapes[name][0]), *shapes[name][1:])

    def tensor(name: str) -> Tensor:
        found = binary.read(name) if name in binary.names else torch.zeros(made)
        if name in known.led:
            return torch.cat([found.new_zeros(known.led[name], *found.shape[1:]), found])
        if name in known.cut:
            return found[: known.cut[name]]
        if name not in known.grown:
            return found
        row = found.new_full((1, *found.shape[1:]), NEVER if name == bias else 0.0)
        return torch.cat([found, row])

    return Weights(shapes, tensor)


GATED: tuple[Rule, ...] = (
    Rename(r"\.feed_forward\.inner\.", ".feed_forward.gate."),
    Rename(r"\.noact\.", ".feed_forward.inner."),
)
ZEROS = Constant(r".*\.((cross_)?attention\.\w+|feed_forward\.\w+)\.bias")  # of linear layers without a bias
LAYERS: tuple[Rule, ...] = (
    Rename(r"^(encoder|decoder)/layer_(\d+)/", r"\1.\2."),
    Split(r"\.self_attention/linear_0/", (".attention.query.", ".attention.key.", ".attention.value.")),
    Rename(r"\.self_attention/linear_1/", ".attention.output."),
    Rename(r"\.self_attention/layer_norm/", ".attention_residual.norm."),
    Rename(r"\.self_attention/q_norm/", ".attention.query_norm."),
    Rename(r"\.self_attention/k_norm/", ".attention.key_norm."),
    Rename(r"\.attention/linear_0/", ".cross_attention.query."),
    Split(r"\.attention/linear_1/", (".cross_attention.key.", ".cross_attention.value.")),
    Rename(r"\.attention/linear_2/", ".cross_attention.output."),
    Rename(r"\.attention/layer_norm/", ".cross_attention_residual.norm."),
    Rename(r"\.ffn/layer_norm/", ".feed_forward_residual.norm."),
    Rename(r"\.ffn/linear_0_noact/", ".noact."),
    Rename(r"\.ffn/linear_0/", ".feed_forward.inner."),
    Rename(r"\.ffn/linear_1/", ".feed_forward.outer."),
    Rename(r"^encoder/embeddings(_0)?/weight$", "source_embedding.tokens.weight"),
    Take(r"^encoder/embeddings_1/weight$"),
    Rename(r"^encoder/embeddings_1/weight$", "source_embedding.segment"),
    Rename(r"^decoder/embeddings/weight$", "target_embedding.tokens.weight"),
    Rename(r"^encoder/position_encodings/encodings$", "source_embedding.positions"),
    Rename(r"^decoder/position_encodings/encodings$", "target_embedding.positions"),
    Rename(r"^encoder/layernorm_embedding/", "source_embedding.norm."),
    Rename(r"^decoder/layernorm_embedding/", "target_embedding.norm."),
    Rename(r"^(encoder|decoder)/layer_norm/", r"\1_norm."),
    Rename(r"^decoder/projection/", "projection."),
    Rename(r"^pooler_dense/", "pooler."),
    Rename(r"norm\.gamma$", "norm.weight"),
    Rename(r"norm\.beta$", "norm.bias"),
)
