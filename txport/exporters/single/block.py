"""Builder of consecutive nodes, in a graph or in the body of its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from txport.errors import UnsupportedError
from txport.system.arrays import Array

Given = ir.Value | int | float | Sequence[int] | Array


class Block:
    """The nodes of a graph, or of a body that can read the values of the `outer` block.

    Constants are initializers of the outermost graph.
    """

    def __init__(self, outer: Block | None = None) -> None:
        self.nodes: list[ir.Node] = []
        self.root: Block = self if outer is None else outer.root
        self.initializers: dict[str, ir.Value] = {}
        self._outer = outer
        self._own = set[ir.Value]()
        self._count = 0
        self._known: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._copies: dict[tuple[object, ...], Sequence[ir.Value]] = {}

    def input(self, name: str, dtype: ir.DataType, dims: Sequence[int | str | None] | None = None) -> ir.Value:
        """Return an input of the block; in the body of a loop, it changes from step to step."""
        shape = None if dims is None else ir.Shape(dims)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
        self._own.add(value)
        return value

    def op(self, operator: str, *inputs: Given, **attributes: object) -> ir.Value:
        """Add a node with one output; return the output."""
        return self.ops(operator, *inputs, count=1, **attributes)[0]

    def ops(self, operator: str, *inputs: Given, count: int, **attributes: Any) -> Sequence[ir.Value]:
        """Add a node with `count` outputs; return them. Numbers among its inputs become constants."""
        given = [each if isinstance(each, ir.Value) else self.known(each) for each in inputs]
        return self._add(operator, given, ir.node(operator, [], attributes).attributes, count)

    def known(self, number: Given, dtype: Any = None) -> ir.Value:
        """Return a constant: int64 for integers, float32 for floats, unless `dtype` is given."""
        array = np.asarray(number, dtype)
        if dtype is None and not isinstance(number, np.ndarray):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        root = self.root
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in root._known:
            name = f"search/constant_{len(root._known)}"
            value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            root._known[key] = root.initializers[name] = value
        return root._known[key]

    def named(self, name: str, array: Array) -> ir.Value:
        """Return a constant with the name `search/{name}`, created once."""
        root = self.root
        name = f"search/{name}"
        if name not in root.initializers:
            root.initializers[name] = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        return root.initializers[name]

    def _add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr], count: int
    ) -> Sequence[ir.Value]:
        self.root._count += 1
        name = f"search/{operator.lower()}_{self.root._count}"
        outputs = [ir.Value(name=name if count == 1 else f"{name}.{at}") for at in range(count)]
        self.nodes.append(ir.Node("", operator, inputs, attributes.values(), outputs=outputs, name=name))
        self._own.update(outputs)
        return outputs

    def _holds(self, value: ir.Value | None) -> bool:
        return value in self._own

    def inline(
        self, model: ir.Model, role: str, given: Mapping[str, ir.Value], wanted: Sequence[str]
    ) -> list[ir.Value]:
        """Copy the nodes of a model that the `wanted` values need; return these values.

        `given`: its inputs by name, and values that replace computed ones. Nodes that do not depend on the step of the
        loop are added once to the graph around it. Raises `UnsupportedError` if an input is missing.
        """
        made: dict[ir.Value | None, ir.Value | None] = {None: None}
        needed = _needed(model, given, wanted)
        for value in model.graph.inputs:
            if str(value.name) in given:
                made[value] = given[str(value.name)]
        for node in model.graph:
            if node not in needed:
                continue
            inputs = [self._input(value, made, given, role) for value in node.inputs]
            inner = self._outer is None or any(map(self._holds, inputs))
            block = self if inner else self.root
            copies = block._copy(node, inputs, role)
            made.update({old: given.get(str(old.name), new) for old, new in zip(node.outputs, copies, strict=True)})
        outputs = {value.name: value for node in needed for value in node.outputs}
        found = [given.get(name) or made[outputs[name]] for name in wanted]
        return [value for value in found if value is not None]

    def _input(
        self, value: ir.Value | None, made: Mapping[Any, Any], given: Mapping[str, ir.Value], role: str
    ) -> ir.Value | None:
        if value in made:
            return made[value]  # type: ignore[no-any-return]
        assert value is not None
        if str(value.name) in given:
            return given[str(value.name)]
        if not value.is_initializer():
            raise UnsupportedError(f"a single graph has no {value.name} for the {role} graph, which needs it")
        return self.root.weight(value, role)

    def weight(self, value: ir.Value, role: str) -> ir.Value:
        """Add an initializer of another graph. The same name means the same weight; differing constants are renamed."""
        tensor = value.const_value
        name = str(value.name)
        assert tensor is not None
        if name in self.initializers and not _are_equal(self.initializers[name].const_value, tensor):
            name = f"{role}/{name}"
        if name not in self.initializers:
            self.initializers[name] = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
            )
        return self.initializers[name]

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None], role: str) -> Sequence[ir.Value]:
        """Copy a node, or return the outputs of an equal node that exists already."""
        key = (node.op_type, *map(id, inputs), len(node.outputs), *map(str, node.attributes.values()))
        if key not in self._copies:
            attributes = {name: ir.Attr(name, each.type, each.value) for name, each in node.attributes.items()}
            self._copies[key] = self._add(node.op_type, inputs, attributes, len(node.outputs))
        return self._copies[key]


def _needed(model: ir.Model, given: Mapping[str, ir.Value], wanted: Sequence[str]) -> set[ir.Node]:
    """Return the nodes that compute the wanted values from given ones."""
    outputs = {value.name: value for node in model.graph for value in node.outputs}
    pending = [outputs[name] for name in wanted if name not in given]
    needed: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in needed:
            needed.add(node)
            pending += [value for value in node.inputs if value is not None and value.name not in given]
    return needed


def _are_equal(one: ir.TensorProtocol | None, other: ir.TensorProtocol) -> bool:
    """True if two tensors of one name are equal: external weights by dtype and shape, constants by value."""
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if isinstance(one, ir.ExternalTensor) and isinstance(other, ir.ExternalTensor):
        return True
    return bool(np.array_equal(one.numpy(), other.numpy()))
