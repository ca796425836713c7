"""The choice of the best tokens behind a step's logits, in the same graph, so that the vocabulary need not leave it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from txport.exporters.trace import value_of
from txport.models.ports import COUNT, IDS, LOG_PROBS, LOGITS, Graph

ADDED = (COUNT, LOG_PROBS, IDS)


def without_top(graph: Graph) -> Graph:
    """The ports that are traced: all but those that `add_top` adds."""
    inputs, outputs = (tuple(port for port in side if port.name not in ADDED) for side in (graph.inputs, graph.outputs))
    return dataclasses.replace(graph, inputs=inputs, outputs=outputs)


def add_top(model: ir.Model, graph: Graph) -> None:
    """Let the graph give the log-probabilities and ids of the k best tokens of each row; nothing is done for k = 0."""
    logits = next(value for value in model.graph.outputs if value.name == LOGITS)
    count = value_of(next(port for port in graph.inputs if port.name == COUNT))
    wanted = ir.node("Cast", [count], attributes={"to": ir.DataType.BOOL}, name="wants_best")
    outputs = [value_of(port) for port in graph.outputs if port.name in ADDED]
    branches = {"then_branch": _best(logits, count), "else_branch": _nothing(outputs)}
    choice = ir.node("If", [wanted.outputs[0]], attributes=branches, outputs=outputs, name="best")
    model.graph.inputs.append(count)
    model.graph.extend([wanted, choice])
    model.graph.outputs.extend(outputs)


def _best(logits: ir.Value, count: ir.Value) -> ir.Graph:
    log_probs = ir.node("LogSoftmax", [logits], attributes={"axis": -1}, name="normalise")
    log_probs.outputs[0].name = "best.all"
    best = ir.node("TopK", [log_probs.outputs[0], count], num_outputs=2, name="choose")
    return _branch("best", [log_probs, best], list(best.outputs))


def _nothing(outputs: list[ir.Value]) -> ir.Graph:
    empty = [
        ir.node("Constant", [], attributes={"value": ir.tensor(np.empty((0, 0), output.dtype.numpy()))})
        for output in outputs
        if output.dtype is not None
    ]
    return _branch("nothing", empty, [node.outputs[0] for node in empty])


def _branch(name: str, nodes: list[ir.Node], outputs: list[ir.Value]) -> ir.Graph:
    for role, value, dtype in zip((LOG_PROBS, IDS), outputs, (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
        value.name, value.type = f"{name}.{role}", ir.TensorType(dtype)
    return ir.Graph([], outputs, nodes=nodes, name=name)
