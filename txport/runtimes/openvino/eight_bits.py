"""Weights in 8 bits, rounded as a graph is loaded: OpenVINO multiplies them with activations that it rounds too.

Each output of a linear map has a scale, the largest of its weights over 127. Rows of a look-up stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from txport.runtimes.openvino.library import openvino

LARGEST = 127
SMALLEST = 1e-30  # a scale: the weights of an output may all be 0

Model = Any  # openvino has no types
Node = Any


def round_weights(model: Model) -> int:
    """Round the weights of all linear maps in place; -> how many there are."""
    found = [place for node in model.get_ordered_ops() if node.get_type_name() == "MatMul" for place in _weight(node)]
    for place, axis in found:
        place.replace_source_output(_rounded(_source(place), axis).output(0))
    return len(found)


def _weight(product: Node) -> Iterator[tuple[Any, int]]:
    """The input that a product's matrix of weights comes in by, as it is stored, and the axis of its outputs."""
    place = product.input(1)
    axis = 0 if product.get_attributes()["transpose_b"] else 1
    if _source(place).get_type_name() == "Transpose":
        place = _source(place).input(0)
        axis = 1 - axis
    held = _source(place)
    if held.get_type_name() == "Convert":  # of weights in 16 bits
        held = _source(held.input(0))
    if held.get_type_name() == "Constant" and len(held.get_output_shape(0)) == 2:
        yield place, axis


def _source(place: Any) -> Node:
    return place.get_source_output().get_node()


def _rounded(held: Node, axis: int) -> Node:
    """Whole numbers of 8 bits times scales, in place of a matrix (D, E) whose outputs lie along an axis."""
    ops = openvino.opset13
    kind = held.get_output_element_type(0)
    constant = _source(held.input(0)) if held.get_type_name() == "Convert" else held
    weights = constant.get_data().astype(np.float32)
    scales = np.maximum(np.abs(weights).max(axis=1 - axis, keepdims=True) / LARGEST, SMALLEST).astype(np.float32)
    whole = np.round(weights / scales).astype(np.int8)
    wide = ops.multiply(ops.convert(ops.constant(whole), "f32"), ops.constant(scales))
    return wide if kind == openvino.Type.f32 else ops.convert(wide, kind.to_string())
