"""The faults that `export` and `parity` must find in every target and precision, and `--bisect` must name.

This is the one list of the tests and of `python -m tests.few_bits --faults`. A fault changes the module that is traced,
as an exporter would that computes something else, or a graph that has been written. The checkpoint stays sound.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from ml_dtypes import uint4
from numpy.typing import NDArray
from onnx import ModelProto, helper
from torch import Tensor, nn

from tests.proof.faults import Edit, constant, swapped, weight
from tests.proof.random_models import random_model
from txport.bundles.forms import Stored
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.folder import preset_config
from txport.models.model import Model
from txport.models.ops import Ops
from txport.models.parts import Attention
from txport.proof.bisect.culprit import Culprit
from txport.targets import ports

Array = NDArray[Any]
Heads = list[Tensor]
Edits = Mapping[str, Edit]  # by role


@dataclass(frozen=True)
class Subject:
    """A small model: the preset whose sizes it has, and the layer that gets the faults."""

    preset: str
    layer: str

    @property
    def words(self) -> str:
        """The layer as `--bisect` describes it."""
        side, number = self.layer.split(".")
        return f"{side} layer {number}"

    def build(self) -> Model:
        """Return the model with seeded weights, of which none is without effect."""
        return random_model(preset_config(self.preset), "plain", seed=len(self.preset))


@dataclass(frozen=True)
class Fault:
    """A fault, the models that have it, and what `--bisect` must name: the part in the layer, and the kind.

    `module` changes a copy of the model that is traced, given its layer; `graphs` returns the edits of the graphs of a
    bundle. A fault that only quantised weights have is `quantised`.
    """

    models: tuple[str, ...]
    part: str
    kind: str
    module: Callable[[Any], None] | None = None
    graphs: Callable[[Manifest, str], Edits] | None = None
    layer: str = ""  # the first one that is wrong, where it is not that of the model
    quantised: bool = False

    def is_named(self, culprit: Culprit | None, subject: Subject) -> bool:
        """Return whether a culprit is this fault."""
        where = f"{self.layer or subject.words}, {self.part}"
        return culprit is not None and culprit.where.startswith(where) and culprit.kind == self.kind

    def traced(self, checkpoint: Checkpoint, subject: Subject) -> Checkpoint:
        """Return the checkpoint whose model is traced."""
        if self.module is None:
            return checkpoint
        model = copy.deepcopy(checkpoint.model)
        with torch.no_grad():
            self.module(model.get_submodule(subject.layer))
        return replace(checkpoint, outline=model)


SUBJECTS = {
    "seq2seq": Subject("tiny", "decoder.1"),
    "t5": Subject("t5-tiny", "decoder.0"),  # its layers share one relative position bias
    "alibi": Subject("mine-alibi-tiny", "decoder.1"),
    "bert": Subject("bert-tiny", "encoder.1"),
}


# --- in the module that is traced ---------------------------------------------------------------------------------


class ExchangedHeads(Attention):
    """The results of the first two heads are exchanged."""

    def forward(self, x: Tensor, ops: Ops, layer: int) -> Tensor:
        first, second, *others = torch.split(ops.attend(self, x, layer), self.head_size, -1)
        found: Tensor = self.output(torch.cat([second, first, *others], -1))
        return found


def exchange_heads(layer: Any) -> None:
    layer.attention.__class__ = ExchangedHeads


def of_heads(change: Callable[[Heads], Heads]) -> Callable[[Any], None]:
    """The position bias of the heads, each (..., 1, T, S), is changed where it is added."""

    def plant(layer: Any) -> None:
        bias = layer.attention.core.bias
        own: type[nn.Module] = type(bias)

        class Changed(own):  # type: ignore[misc, valid-type]
            def forward(self, distances: Tensor) -> Tensor:
                return torch.cat(change(list(torch.split(super().forward(distances), 1, -3))), -3)

        bias.__class__ = Changed

    return plant


def scale(layer: Any) -> None:
    layer.attention.core.scale *= 0.97


def epsilon(layer: Any) -> None:
    layer.feed_forward_residual.norm.eps = 1e-3


def key_bias(layer: Any) -> None:
    layer.attention.key.bias.zero_()


def one_row(layer: Any) -> None:
    """A row of a weight is the one before it."""
    layer.feed_forward.inner.weight[3] = layer.feed_forward.inner.weight[2]


# --- in the graphs that have been written ---------------------------------------------------------------------------


def short_masks(manifest: Manifest, layer: str) -> Edits:
    """The last token of each source is masked."""
    masks = (ports.ATTENTION_MASK, ports.ENCODER_ATTENTION_MASK, ports.SOURCE_LENGTHS)
    found = ((role, [each.name for each in graph.inputs]) for role, graph in manifest.graphs.items())
    return {role: shorter(name) for role, names in found for name in masks if name in names}


def shorter(name: str) -> Edit:
    """Lengths are one less, or a mask is moved by one place."""

    def edit(model: ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = ["planted.short" if each == name else each for each in node.input]
        if name == ports.SOURCE_LENGTHS:
            (given,) = (each for each in model.graph.input if each.name == name)
            one = constant(model, 1, helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type))
            model.graph.node.insert(0, helper.make_node("Sub", [name, one], ["planted.short"]))
            return
        begin, first, end, axis = (constant(model, [each], np.int64) for each in (0, 1, 1 << 40, 1))
        moved = [
            helper.make_node("Slice", [name, first, end, axis], ["planted.rest"]),
            helper.make_node("Slice", [name, begin, first, axis], ["planted.first"]),
            helper.make_node("Sub", ["planted.first", "planted.first"], ["planted.none"]),
            helper.make_node("Concat", ["planted.rest", "planted.none"], ["planted.short"], axis=1),
        ]
        for node in reversed(moved):
            model.graph.node.insert(0, node)

    return edit


def last_role(manifest: Manifest) -> str:
    """The graph that computes the logits of a step, or all outputs."""
    return next(role for role in (ports.STEP, ports.DECODER, ports.MODEL) if role in manifest.graphs)


def exchanged_caches(manifest: Manifest, layer: str) -> Edits:
    role = last_role(manifest)
    number = int(layer.rpartition(".")[2])
    key, value = (name for each, name in manifest.graphs[role].past("row").items() if each.layer == number)
    return {role: swapped(key, value)}


def stored_weight(manifest: Manifest, layer: str) -> tuple[str, Stored]:
    """The initializer with the first weight of the feed-forward, and how it is stored."""
    name = f"{layer}.feed_forward.inner.weight"
    return next((each, stored) for each, stored in manifest.weights.items() if name in stored.weights)


def wrong_zero_point(manifest: Manifest, layer: str) -> Edits:
    """The first output of a quantised product, or its first block, has another zero point."""
    name, stored = stored_weight(manifest, layer)

    def edit(model: ModelProto) -> None:
        (scales,) = (each.dims for each in model.graph.initializer if each.name == stored.scales)
        node = next(each for each in model.graph.node if name in each.input)
        if node.op_type == "Transpose":
            node = next(each for each in model.graph.node if node.output[0] in each.input)
        zeros = right_zero_points(stored, scales)
        zeros.flat[0] += 1
        place = {"QGemm": 5, "DequantizeLinear": 2}.get(node.op_type, 3)
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = constant(model, zeros, zeros.dtype)

    return {last_role(manifest): edit}


def right_zero_points(stored: Stored, scales: Sequence[int]) -> Array:
    """Return the zero points of a product whose scales have this shape; those of blocks of 4 bits are in pairs."""
    assert stored.form is not None
    if stored.form.has_row_scales:
        return np.zeros(scales, np.int8)
    outputs, blocks = scales
    if stored.form.kind == "qdq":
        return np.zeros((blocks, outputs), np.int8) if stored.form.bits == 8 else np.full((blocks, outputs), 8, uint4)
    if stored.form.bits == 8:
        return np.full((outputs, blocks), 0x80, np.uint8)
    return np.full((outputs, -(-blocks // 2)), 0x88, np.uint8)


def wrong_scales(manifest: Manifest, layer: str) -> Edits:
    """Each block has the scale of the one before it, or, where scales are for whole rows, each row."""
    _, stored = stored_weight(manifest, layer)
    return {last_role(manifest): weight(str(stored.scales), lambda scales: np.roll(scales, 1))}


ATTENTION = "self-attention"
NORM = "norm of feed-forward"
INNER = "feed-forward, first linear layer"
ALL = ("seq2seq", "alibi", "bert")
FAULTS = {
    "two heads exchanged": Fault(("t5", *ALL), ATTENTION, "heads", exchange_heads),
    "two heads' biases exchanged": Fault(
        ("t5", "alibi"), ATTENTION, "position", of_heads(lambda heads: [*heads[1::-1], *heads[2:]])
    ),
    "one head's bias": Fault(
        ("t5", "alibi"), ATTENTION, "position", of_heads(lambda heads: [0 * heads[0], *heads[1:]])
    ),
    "slopes reversed": Fault(("alibi",), ATTENTION, "position", of_heads(lambda heads: heads[::-1])),
    "a scale of 0.97": Fault(("t5", *ALL), ATTENTION, "scale", scale),
    "an epsilon": Fault(("t5", *ALL), NORM, "epsilon", epsilon),
    "a mask short by one": Fault(
        ("seq2seq", "t5", "bert"), ATTENTION, "mask", graphs=short_masks, layer="encoder layer 0"
    ),
    "a cache port exchanged": Fault(
        ("seq2seq", "t5", "alibi"), f"{ATTENTION}, cached keys", "cache", graphs=exchanged_caches
    ),
    "a key bias": Fault(ALL, f"{ATTENTION}, ", "weight", key_bias),
    "one row of one weight": Fault(ALL, INNER, "weight", one_row),
    "a wrong zero point": Fault(ALL, INNER, "operator", graphs=wrong_zero_point, quantised=True),
    "the wrong block's scale": Fault(ALL, INNER, "weight", graphs=wrong_scales, quantised=True),
}
