"""Faults to plant into the graphs of a bundle: each is an edit for `tests.tiny.edit_graph`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

Edit = Callable[[ModelProto], None]
Array = NDArray[Any]


def nodes(model: ModelProto, kind: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == kind]


def constant(model: ModelProto, value: Any, dtype: Any = np.float32) -> str:
    name = f"planted.{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
    return name


def before(model: ModelProto, node: NodeProto, place: int, kind: str, *more: str) -> None:
    """Put a node between another and one of its inputs."""
    name = f"planted.{node.name}.{place}"
    planted = helper.make_node(kind, [node.input[place], *more], [name], name=name)
    model.graph.node.insert(list(model.graph.node).index(node), planted)
    node.input[place] = planted.output[0]


def weight(name: str, change: Callable[[Array], Array]) -> Edit:
    """Change one initializer."""

    def edit(model: ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))

    return edit


def put(value: float) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array[2, 5] = value
        return array

    return change


def scaled(kind: str, number: int, factor: float = 0.99) -> Edit:
    """The input of a node times a factor."""

    def edit(model: ModelProto) -> None:
        before(model, nodes(model, kind)[number], 0, "Mul", constant(model, factor))

    return edit


def attribute(kind: str, number: int, **values: Any) -> Edit:
    def edit(model: ModelProto) -> None:
        node = nodes(model, kind)[number]
        kept = [each for each in node.attribute if each.name not in values]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in values.items())])

    return edit


def unmasked(number: int) -> Edit:
    """Softmax over the scores alone, or an attention without lengths."""

    def edit(model: ModelProto) -> None:
        if fused := nodes(model, "MultiHeadAttention"):
            fused[number].input[4] = ""
            return
        softmax = nodes(model, "Softmax")[number]
        masked = next(node for node in nodes(model, "Add") if node.output[0] == softmax.input[0])
        softmax.input[0] = masked.input[0]

    return edit


def swapped(first: str, second: str) -> Edit:
    """Two inputs that are wired to each other's places."""

    def edit(model: ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = [{first: second, second: first}.get(name, name) for name in node.input]

    return edit


def swapped_outputs(first: str, second: str) -> Edit:
    def edit(model: ModelProto) -> None:
        for node in model.graph.node:
            for side in (node.input, node.output):
                side[:] = [{first: second, second: first}.get(name, name) for name in side]

    return edit


def shifted(name: str, by: int, reader: str) -> Edit:
    """An integer input that is off by one for one kind of reader."""

    def edit(model: ModelProto) -> None:
        for node in nodes(model, reader):
            for place, given in enumerate(node.input):
                if given == name:
                    before(model, node, place, "Add", constant(model, by, np.int32))

    return edit


def embedding_scaled(model: ModelProto) -> None:
    product = next(node for node in nodes(model, "Mul") if node.input[0].startswith("embedding"))
    before(model, product, 0, "Mul", constant(model, 1.01))


def without_residual(number: int) -> Edit:
    """What a sublayer gets is not added to what it gives."""

    def edit(model: ModelProto) -> None:
        norm = nodes(model, "LayerNormalization")[number]
        total = next(node for node in nodes(model, "Add") if node.output[0] == norm.input[0])
        before(model, total, 0, "Mul", constant(model, 0.0))

    return edit


def without_summand(number: int, arm: int) -> Edit:
    """One of the two values that a residual sum adds is all that is left of it."""

    def edit(model: ModelProto) -> None:
        read = {node.input[0] for node in nodes(model, "LayerNormalization")}
        weights = {tensor.name for tensor in model.graph.initializer}
        sums = [node for node in nodes(model, "Add") if node.output[0] in read and not weights & {*node.input}]
        total = sums[number]
        for node in model.graph.node:
            node.input[:] = [total.input[1 - arm] if name == total.output[0] else name for name in node.input]
        model.graph.node.remove(total)

    return edit


def logarithm(number: int) -> Edit:
    """NaN for whatever is negative."""

    def edit(model: ModelProto) -> None:
        before(model, nodes(model, "Softmax")[number], 0, "Log")

    return edit
