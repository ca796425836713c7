"""Top-k after the logits of a step, in the same graph, so that all logits need not be copied from it.

The input `k` selects the outputs: k > 0: the k best tokens with log-probabilities; k < 0: the -k best tokens with their
logits; 0: only the logits. With screening, the fp32 projection is skipped if there are few candidates. What only the
cross-attention output needs moves into a branch of an If.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from txport.exporters.check import GraphError
from txport.exporters.cpu.screening import add_candidates, choose, constant
from txport.exporters.fused.packs import is_linear
from txport.exporters.tracing.trace import value_of
from txport.targets.cpu import PROJECT, SEEK
from txport.targets.ports import ALIGN, COUNT, CROSS_ATTENTION, IDS, LOG_PROBS, LOGITS, Graph

ADDED = (ALIGN, COUNT, LOG_PROBS, IDS)
BEST = (ir.DataType.FLOAT, ir.DataType.INT64)


def without_top(graph: Graph) -> Graph:
    """Return the traced ports: all except those that `add_top` and `make_conditional` add."""
    inputs, outputs = (tuple(port for port in side if port.name not in ADDED) for side in (graph.inputs, graph.outputs))
    return dataclasses.replace(graph, inputs=inputs, outputs=outputs)


def add_top(model: ir.Model, graph: Graph, *, shorten: bool) -> None:
    """Add top-k to the graph; with `shorten`, by screening where possible, without computing all logits."""
    place, logits = next((at, each) for at, each in enumerate(model.graph.outputs) if each.name == LOGITS)
    count = value_of(graph.port(COUNT))
    outputs = [value_of(graph.port(name)) for name in (LOG_PROBS, IDS)]
    model.graph.inputs.append(count)
    model.graph.outputs.extend(outputs)
    if not shorten:
        model.graph.extend(_request(count, logits, outputs))
        return
    projection, x, weight = _projection(logits)
    model.graph.outputs[place] = value_of(graph.port(LOGITS))
    model.graph.remove(projection, safe=True)
    model.graph.extend(_shorten(model, x, weight, count, [model.graph.outputs[place], *outputs]))


def _projection(logits: ir.Value) -> tuple[ir.Node, ir.Value, ir.Value]:
    """Return the product that computes the logits, its input and its matrix; raise `GraphError` for other logits."""
    node = logits.producer()
    x, weight, *bias = (None, None) if node is None or not is_linear(node) else node.inputs
    if node is None or x is None or weight is None or any(each is not None for each in bias):
        found = "an input" if node is None else f"{node.op_type} of {len(node.inputs)} inputs"
        raise GraphError(
            f"has_plain_logits is true in the model's facts, but its logits are {found}, not one product with a "
            "matrix and nothing else; set has_plain_logits=False"
        )
    return node, x, weight


def _shorten(
    model: ir.Model, x: ir.Value, weight: ir.Value, count: ir.Value, outputs: Sequence[ir.Value]
) -> Sequence[ir.Node]:
    """Return the nodes: candidates if only tokens are requested; all logits unless candidates are few; top-k."""
    tape, seeking, projecting, choosing = (ir.tape.Tape() for _ in range(4))
    logits, *best = outputs
    wanted = tape.op("Neg", [count])
    found = add_candidates(model, seeking, x, weight, wanted)
    none = [np.empty(0, np.int64), np.empty(0, np.int64), np.array(False)]
    branches = {"then_branch": _branch("candidates", seeking, found), "else_branch": _constants("none", none)}
    seek = tape.op("Less", [count, constant(tape, [0])])
    row, token, few = tape.op_multi_out("If", [seek], branches, num_outputs=3, name=SEEK)

    every = projecting.op("Gemm", [x, weight], {"transB": 1})
    empty = _constants("no_logits", [np.empty((0, 0), np.float32)])
    branches = {"then_branch": empty, "else_branch": _branch("project", projecting, [every])}
    tape.op("If", [few], branches, output=logits, name=PROJECT)

    chosen = choose(choosing, x, weight, row, token, wanted)
    requested = [ir.Value(type=ir.TensorType(dtype)) for dtype in BEST]
    otherwise = ir.Graph([], requested, nodes=_request(count, logits, requested), name="ask")
    branches = {"then_branch": _branch("choose", choosing, chosen), "else_branch": otherwise}
    tape.op_multi_out("If", [few], branches, outputs=best, name="best")
    return _named("shorten", tape)


def _request(count: ir.Value, logits: ir.Value, outputs: Sequence[ir.Value]) -> Sequence[ir.Node]:
    """Return the nodes of top-k over all logits, with log-probabilities or logits as scores; empty outputs for 0."""
    tape = ir.tape.Tape()
    best = ir.tape.Tape()
    positive = best.op("Greater", [count, constant(best, [0])])
    normal = ir.tape.Tape()
    plain = ir.tape.Tape()
    normalised = normal.op("LogSoftmax", [logits], {"axis": -1})
    scores = best.op(
        "If",
        [positive],
        {
            "then_branch": _branch("normalise", normal, [normalised]),
            "else_branch": _branch("keep", plain, [plain.op("Identity", [logits])]),
        },
    )
    found = best.op_multi_out("TopK", [scores, best.op("Abs", [count])], num_outputs=2)
    nothing = [np.empty((0, 0), dtype.numpy()) for dtype in BEST]
    branches = {"then_branch": _branch("best_of_all", best, found), "else_branch": _constants("nothing", nothing)}
    tape.op_multi_out(
        "If", [tape.op("Cast", [count], {"to": ir.DataType.BOOL})], branches, outputs=outputs, name="best_of_logits"
    )
    return _named("ask", tape)


def _constants(name: str, arrays: Sequence[np.ndarray]) -> ir.Graph:
    tape = ir.tape.Tape()
    return _branch(name, tape, [constant(tape, array) for array in arrays])


def _branch(name: str, tape: ir.tape.Tape, outputs: Sequence[ir.Value]) -> ir.Graph:
    return ir.Graph([], outputs, nodes=_named(name, tape), name=name)


def _named(name: str, tape: ir.tape.Tape) -> Sequence[ir.Node]:
    """Return the nodes of a tape with values named after it: names must be unique over all branches."""
    nodes = list(tape.nodes)
    for number, value in enumerate(value for node in nodes for value in node.outputs):
        value.name = value.name or f"{name}.{number}"
    return nodes


def make_conditional(model: ir.Model, graph: Graph) -> int:
    """Compute the cross-attention output of a step only if the input `align` is true; return the nodes moved."""
    place, wanted = next((at, each) for at, each in enumerate(model.graph.outputs) if each.name == CROSS_ATTENTION)
    port = graph.port(CROSS_ATTENTION)
    requested = value_of(graph.port(ALIGN))
    own = exclusive(model.graph, wanted)
    tape = ir.tape.Tape()
    nothing = ir.tape.Tape()
    model.graph.outputs[place] = value_of(port)
    model.graph.remove(own)
    wanted.name = f"{CROSS_ATTENTION}.given"
    empty = constant(nothing, np.empty((0, 0), port.dtype))
    empty.name = f"{CROSS_ATTENTION}.none"
    branches = {
        "then_branch": ir.Graph([], [wanted], nodes=own, name="attention"),
        "else_branch": ir.Graph([], [empty], nodes=list(nothing.nodes), name="no_attention"),
    }
    tape.op("If", [requested], branches, output=model.graph.outputs[place], name="attention")
    model.graph.inputs.append(requested)
    model.graph.extend(tape.nodes)
    return len(own)


def exclusive(graph: ir.Graph, output: ir.Value) -> list[ir.Node]:
    """Return the nodes that only this output needs, in graph order."""
    found: list[ir.Node] = []
    for node in reversed(list(graph)):
        given = [value for value in node.outputs if value.is_graph_output()]
        users = [use.node for value in node.outputs for use in value.uses()]
        if given in ([], [output]) and (given or users) and all(user in found for user in users):
            found.append(node)
    return found[::-1]
