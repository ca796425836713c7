"""Quantise weights to 8 bits when a graph is loaded. OpenVINO quantises the activations in the same products.

Each output of a linear layer has a scale: its largest absolute weight / 127. Embedding tables do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from txport.runtimes.openvino.library import openvino

LARGEST = 127
SMALLEST = 1e-30  # minimum scale: all weights of an output may be 0

Model = Any  # openvino has no types
Node = Any


def round_weights(model: Model) -> int:
    """Quantise the weights of all linear layers in place; return the number of linear layers."""
    found = [place for node in model.get_ordered_ops() if node.get_type_name() == "MatMul" for place in _weight(node)]
    for place, axis in found:
        place.replace_source_output(_rounded(_source(place), axis).output(0))
    return len(found)


def _weight(product: Node) -> Iterator[tuple[Any, int]]:
    """Yield the input with a MatMul's weight matrix as stored, and its axis of outputs; nothing without weights."""
    place = product.input(1)
    axis = 0 if product.get_attributes()["transpose_b"] else 1
    if _source(place).get_type_name() == "Transpose":
        place = _source(place).input(0)
        axis = 1 - axis
    held = _source(place)
    if held.get_type_name() == "Convert":  # 16-bit weights
        held = _source(held.input(0))
    if held.get_type_name() == "Constant" and len(held.get_output_shape(0)) == 2:
        yield place, axis


def _source(place: Any) -> Node:
    return place.get_source_output().get_node()


def _rounded(held: Node, axis: int) -> Node:
    """Return int8 weights times scales as a node that replaces a matrix (D, E); `axis` is its axis of outputs."""
    ops = openvino.opset13
    kind = held.get_output_element_type(0)
    constant = _source(held.input(0)) if held.get_type_name() == "Convert" else held
    weights = constant.get_data().astype(np.float32)
    scales = np.maximum(np.abs(weights).max(axis=1 - axis, keepdims=True) / LARGEST, SMALLEST).astype(np.float32)
    whole = np.round(weights / scales).astype(np.int8)
    wide = ops.multiply(ops.convert(ops.constant(whole), "f32"), ops.constant(scales))
    return wide if kind == openvino.Type.f32 else ops.convert(wide, kind.to_string())
