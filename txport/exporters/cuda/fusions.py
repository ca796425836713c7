"""Fusion of sums with the next operator: biases with a following GELU, residuals with a following norm."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from txport.exporters.fused.packs import MICROSOFT, is_product
from txport.targets.ports import Graph

GELUS = {"Gelu": "BiasGelu", "FastGelu": "FastGelu"}
NORMS = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}


def fuse_biases(model: ir.Model, graph: Graph) -> int:
    """Fuse the Add of a bias with the following GELU; return the number of fusions."""
    fired = 0
    for node in list(model.graph):
        if node.op_type not in GELUS or len(node.inputs) > 1 or not _is_fusable(node):
            continue
        added = _only_reader(node.inputs[0], "Add")
        if added is None or not _adds_bias(added):
            continue
        fused = ir.node(GELUS[node.op_type], list(added.inputs), domain=MICROSOFT)
        _take_place(model, node, fused, {node.outputs[0]: fused.outputs[0]}, [node, added])
        fired += 1
    return fired


def _is_fusable(node: ir.Node) -> bool:
    """True if the fused operator supports the approximation of a GELU node."""
    return node.op_type == "FastGelu" or node.attributes.get_string("approximate", "none") == "none"


def fuse_residuals(model: ir.Model, graph: Graph) -> int:
    """Fuse a residual sum, and the bias of one operand, with the following norm; return the number of fusions.

    Other nodes may read the sum too.
    """
    fired = 0
    for node in list(model.graph):
        total = node.inputs[0] if node.op_type in NORMS else None
        added = None if total is None else total.producer()
        if total is None or added is None or added.op_type != "Add" or not _are_alike(added.inputs):
            continue
        if len(_readers(total, NORMS)) > 1 or total.is_graph_output():
            continue
        operands = list(added.inputs)
        taken = [node, added]
        bias: list[ir.Value | None] = []
        for at in (1, 0):
            inner = _only_reader(operands[at], "Add")
            if inner is not None and _adds_bias(inner):
                operands[at] = inner.inputs[0]
                bias = [inner.inputs[1]]
                taken.append(inner)
                break
        first, second = operands
        weights = list(node.inputs[1:])
        if node.op_type == "LayerNormalization" and len(weights) == 1 and bias:
            weights.append(None)
        fused = ir.node(
            NORMS[node.op_type],
            [first, second, *weights, *bias],
            attributes={"epsilon": node.attributes.get_float("epsilon", 1e-5)},
            domain=MICROSOFT,
            outputs=[ir.Value(name=f"{node.outputs[0].name}.fused")],
        )
        outputs = {node.outputs[0]: fused.outputs[0]}
        if len(total.uses()) > 1:
            fused.resize_outputs(4)
            for unused in fused.outputs[1:3]:
                unused.name = ""
            fused.outputs[3].name = f"{total.name}.kept"
            outputs[total] = fused.outputs[3]
        _take_place(model, added if len(total.uses()) > 1 else node, fused, outputs, taken)
        fired += 1
    return fired


def _only_reader(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the producer of a value if it is the operator and the value has a single reader, otherwise None."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != operator or value.is_graph_output():
        return None
    return node if len(value.uses()) == 1 else None


def _adds_bias(node: ir.Node) -> bool:
    """True if a node adds a bias to a product."""
    product = node.inputs[0]
    bias = node.inputs[1]
    made = None if product is None else product.producer()
    is_vector = bias is not None and bias.is_initializer() and bias.shape is not None and len(bias.shape) == 1
    return is_vector and made is not None and is_product(made)


def _are_alike(values: Sequence[ir.Value | None]) -> bool:
    """True if both values have the same dims, so that the sum does not broadcast."""
    one, other = map(_dims, values)
    return one is not None and one == other


def _dims(value: ir.Value | None) -> list[int | None] | None:
    """Return the dims of a value (None for a dynamic dim), or None for a weight or an unknown shape."""
    if value is None or value.shape is None or value.is_initializer():
        return None
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def _readers(value: ir.Value, operators: dict[str, str]) -> list[ir.Node]:
    return [use.node for use in value.uses() if use.node.op_type in operators]


def _take_place(
    model: ir.Model, place: ir.Node, fused: ir.Node, outputs: dict[ir.Value, ir.Value], gone: Sequence[ir.Node]
) -> None:
    """Insert `fused` before `place`, replace the old outputs by its outputs, and remove the fused nodes."""
    model.graph.insert_before(place, fused)
    named = {new: old.name for old, new in outputs.items() if old.is_graph_output()}
    for old, new in outputs.items():
        new.type = old.type
        new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.remove(list(gone), safe=True)
    for new, name in named.items():  # graph outputs keep the names of the ports
        new.name = name
