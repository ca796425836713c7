"""The small graphs that no module is traced for: they pick rows of a state, and the best tokens of a step."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from txport.models.ports import ROWS, Graph, Port


def select_model(graph: Graph, opset: int) -> ir.Model:
    """One Gather over axis 0 for each tensor of the state, so that beams reorder on the device where it lies."""
    inputs, outputs = _values(graph.inputs), _values(graph.outputs)
    rows = next(value for value in inputs if value.name == ROWS)
    kept = [value for value in inputs if value.name != ROWS]
    nodes = [
        ir.node("Gather", [value, rows], attributes={"axis": 0}, outputs=[picked], name=f"select_{value.name}")
        for value, picked in zip(kept, outputs, strict=True)
    ]
    return _model(graph, inputs, outputs, nodes, opset)


def top_model(graph: Graph, opset: int) -> ir.Model:
    """Log-probabilities of the k best tokens of each row, so that the vocabulary stays in the graph."""
    (logits, count), outputs = _values(graph.inputs), _values(graph.outputs)
    log_probs = ir.node("LogSoftmax", [logits], attributes={"axis": -1}, name="normalise")
    best = ir.node("TopK", [log_probs.outputs[0], count], outputs=outputs, name="best")
    return _model(graph, [logits, count], outputs, [log_probs, best], opset)


def _model(graph: Graph, inputs: list[ir.Value], outputs: list[ir.Value], nodes: list[ir.Node], opset: int) -> ir.Model:
    body = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": opset}, name=graph.role)
    return ir.Model(body, ir_version=10)


def _values(ports: tuple[Port, ...]) -> list[ir.Value]:
    return [
        ir.Value(
            name=port.name,
            type=ir.TensorType(ir.DataType.from_numpy(np.dtype(port.dtype))),
            shape=ir.Shape(port.dims),
        )
        for port in ports
    ]
