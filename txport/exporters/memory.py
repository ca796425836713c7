"""Graphs without weights that move a decoder's state on its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from txport.exporters.tracing.trace import IR_VERSION, value_of
from txport.targets.ports import ADMIT_ROWS, ADMIT_SOURCES, GROW_ROWS, GROW_SOURCES, MORE, ROWS, Graph

Tensors = Sequence[ir.Value]


def memory_model(graph: Graph, opset: int) -> ir.Model:
    """Return the graph of a role: select rows of tensors, extend tensors, or write rows of other tensors into them."""
    inputs, outputs = ([value_of(port) for port in side] for side in (graph.inputs, graph.outputs))
    moved = inputs[: len(outputs)]
    (requested,) = [each for each in inputs if each.name in (ROWS, MORE)]
    others = inputs[len(outputs) : 2 * len(outputs)]
    tape = ir.tape.Tape()
    if graph.role in (GROW_ROWS, GROW_SOURCES):
        _grow(tape, moved, requested, outputs)
    elif graph.role in (ADMIT_ROWS, ADMIT_SOURCES):
        _admit(tape, moved, others, requested, outputs)
    else:
        for value, picked in zip(moved, outputs, strict=True):
            tape.op("Gather", [value, requested], {"axis": 0}, output=picked, name=f"select_{value.name}")
    initializers = list(_lifted(tape))
    nodes = [node for node in tape.nodes if node.op_type != "Constant"]
    body = ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, opset_imports={"": opset}, name=graph.role)
    return ir.Model(body, ir_version=IR_VERSION)


def _grow(tape: ir.tape.Tape, moved: Tensors, more: ir.Value, outputs: Tensors) -> None:
    """Append zeros to each tensor along axis 1; no shape is computed on the host."""
    assert moved[0].dtype is not None
    kind = moved[0].dtype.numpy()
    zeros = tape.op("Expand", [_constant(tape, "zero", np.zeros(1, kind)), more])
    room = tape.op("Reshape", [zeros, _constant(tape, "one_dim", np.array([1, -1, 1]))])
    never = _constant(tape, "never", np.zeros((1, 1, 1), np.bool_))
    ends = [_constant(tape, name, np.array([at])) for name, at in (("first", 0), ("second", 1), ("axis", 1))]
    for value, grown in zip(moved, outputs, strict=True):
        like = tape.op("Slice", [value, *ends])  # (R, 1, D), only for its shape
        tape.op("Concat", [value, tape.op("Where", [never, like, room])], {"axis": 1}, output=grown)


def _admit(tape: ir.tape.Tape, moved: Tensors, others: Tensors, rows: ir.Value, outputs: Tensors) -> None:
    """Write rows of `others` at the indices `rows`; other rows stay in place if output and input share memory."""
    places = tape.op("Unsqueeze", [rows, _constant(tape, "last", np.array([-1]))])
    for value, other, admitted in zip(moved, others, outputs, strict=True):
        tape.op("ScatterND", [value, places, other], output=admitted)


def _constant(tape: ir.tape.Tape, name: str, array: np.ndarray) -> ir.Value:
    value = tape.op("Constant", [], {"value": ir.tensor(array)})
    value.name = name
    return value


def _lifted(tape: ir.tape.Tape) -> Iterator[ir.Value]:
    """Turn Constant nodes into initializers and yield them."""
    for node in tape.nodes:
        if node.op_type == "Constant":
            value = node.outputs[0]
            held = ir.Value(name=value.name, const_value=node.attributes["value"].as_tensor())
            assert held.const_value is not None
            held.type, held.shape = ir.TensorType(held.const_value.dtype), ir.Shape(held.const_value.shape.numpy())
            value.replace_all_uses_with(held)
            yield held
