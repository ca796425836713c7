"""Conditional outputs: nodes that only one output needs move into a branch of an If."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from txport.bundles.ports import ALIGN, CROSS_ATTENTION, Graph
from txport.exporters.cpu.screening import constant
from txport.exporters.trace import value_of


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
