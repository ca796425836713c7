"""Graphs with a part changed: a weight, an attribute, a port, what a node reads or does."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx

from tests.hostile.changes import mutate_bytes

GraphEdit = Callable[[onnx.ModelProto, random.Random], object]


def _weight(model: onnx.ModelProto, rng: random.Random) -> onnx.TensorProto:
    weight: onnx.TensorProto = rng.choice(model.graph.initializer)
    return weight


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    node: onnx.NodeProto = rng.choice(model.graph.node)
    return node


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attributes = [each for node in model.graph.node for each in node.attribute]
    if not attributes:
        return
    chosen = rng.choice(attributes)
    if chosen.type == onnx.AttributeProto.INT:
        chosen.i = rng.choice((-1, 0, 2, 17, 2**31, -(2**63)))
    elif chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    elif chosen.ints:
        chosen.ints[0] = rng.choice((-1, 5, 2**40))
    else:
        chosen.type = rng.randrange(12)


def _dims(model: onnx.ModelProto, rng: random.Random) -> None:
    weight = _weight(model, rng)
    if weight.dims:
        weight.dims[rng.randrange(len(weight.dims))] = rng.choice((-1, 0, 1, 3, 17, 2**20, 2**40, 2**62))
    else:
        weight.dims.append(rng.choice((0, 2, 2**40)))


def _type(model: onnx.ModelProto, rng: random.Random) -> None:
    _weight(model, rng).data_type = rng.randrange(30)


def _raw(model: onnx.ModelProto, rng: random.Random) -> None:
    weight = _weight(model, rng)
    weight.raw_data = mutate_bytes(weight.raw_data, rng) if rng.random() < 0.5 else rng.randbytes(len(weight.raw_data))


def _numbers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Whole numbers, which are shapes, axes and places."""
    whole = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT64 and each.raw_data]
    if not whole:
        return
    weight = rng.choice(whole)
    values = np.frombuffer(weight.raw_data, np.int64).copy()
    values[rng.randrange(len(values))] = rng.choice((-1, 0, 1, 5, 1_000, -(2**62), 2**62))
    weight.raw_data = values.tobytes()


def _rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    other = _node(model, rng)
    if node.input:
        there = [*other.output, *other.input, _weight(model, rng).name, "", "nowhere"]
        node.input[rng.randrange(len(node.input))] = rng.choice(there)


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).op_type = rng.choice(("Add", "MatMul", "Gather", "Reshape", "Loop", "If", "Identity", "Pow", ""))


def _port(model: onnx.ModelProto, rng: random.Random) -> None:
    port = rng.choice([*model.graph.input, *model.graph.output])
    match rng.randrange(4):
        case 0:
            port.name += "2"
        case 1:
            port.type.tensor_type.elem_type = rng.randrange(20)
        case 2:
            port.type.tensor_type.shape.dim.add().dim_value = rng.choice((1, 2**40, -5))
        case 3:
            port.ClearField("type")


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice((0, 1, 7, 13, 25, 30, 2**40))


EDITS: tuple[GraphEdit, ...] = (
    _attribute,
    _attribute,
    _dims,
    _type,
    _raw,
    _numbers,
    _numbers,
    _rewire,
    _rewire,
    _operator,
    _port,
    _opset,
    lambda model, rng: model.graph.node.remove(_node(model, rng)),
    lambda model, rng: model.graph.node.append(_node(model, rng)),
    lambda model, rng: model.graph.initializer.remove(_weight(model, rng)),
    lambda model, rng: model.graph.initializer.append(_weight(model, rng)),
    lambda model, rng: setattr(_weight(model, rng), "name", _weight(model, rng).name),
)
