"""The graph that picks rows of a decoder's state, so that beams reorder on the device where the state lies."""

from __future__ import annotations

import onnx_ir as ir

from txport.bundles.ports import ROWS, Graph
from txport.exporters.trace import IR_VERSION, value_of


def select_model(graph: Graph, opset: int) -> ir.Model:
    """One Gather over axis 0 for each tensor of the state."""
    inputs = [value_of(port) for port in graph.inputs]
    outputs = [value_of(port) for port in graph.outputs]
    rows = next(value for value in inputs if value.name == ROWS)
    kept = [value for value in inputs if value.name != ROWS]
    nodes = [
        ir.node("Gather", [value, rows], attributes={"axis": 0}, outputs=[picked], name=f"select_{value.name}")
        for value, picked in zip(kept, outputs, strict=True)
    ]
    body = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": opset}, name=graph.role)
    return ir.Model(body, ir_version=IR_VERSION)
