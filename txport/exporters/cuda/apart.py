"""Reversal of fusions: operators that compute several parts are split, so that each part is visible."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from txport.exporters.cuda.fusions import NORMS
from txport.exporters.fused.packs import MICROSOFT, is_product

Values = list[ir.Value | None]


def take_apart(model: ir.Model) -> None:
    """Replace each fused operator by separate nodes, in place."""
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type in APART:
            APART[node.op_type](model, node)


def _gelu(operator: str, domain: str = "") -> Callable[[ir.Model, ir.Node], None]:
    def split(model: ir.Model, node: ir.Node) -> None:
        if len(node.inputs) > 1:
            total = ir.node("Add", node.inputs[:2])
            activated = ir.node(operator, [total.outputs[0]], domain=domain)
            _replace(model, node, [total, activated], {0: activated.outputs[0]})

    return split


def _norm(operator: str, bias_at: int) -> Callable[[ir.Model, ir.Node], None]:
    def split(model: ir.Model, node: ir.Node) -> None:
        operands: Values = list(node.inputs[:2])
        made: list[ir.Node] = []
        bias = node.inputs[bias_at] if len(node.inputs) > bias_at else None
        if bias is not None:  # the bias belongs to the operand that is a product
            at = next((at for at, each in enumerate(operands) if each is not None and _is_of_product(each)), 0)
            made.append(ir.node("Add", [operands[at], bias]))
            operands[at] = made[-1].outputs[0]
        total = ir.node("Add", operands)
        weights = [each for each in node.inputs[2:bias_at] if each is not None]
        how = {"axis": -1, "epsilon": node.attributes.get_float("epsilon", 1e-12), "stash_type": 1}
        normal = ir.node(operator, [total.outputs[0], *weights], attributes=how)
        _replace(model, node, [*made, total, normal], {0: normal.outputs[0], 3: total.outputs[0]})

    return split


def _is_of_product(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and (is_product(node) or node.op_type == "MatMulNBits")


def _replace(model: ir.Model, node: ir.Node, made: list[ir.Node], outputs: dict[int, ir.Value]) -> None:
    """Replace a node by others; its outputs keep their names."""
    model.graph.insert_before(node, made)
    for at, new in outputs.items():
        if at < len(node.outputs) and node.outputs[at].name:
            old = node.outputs[at]
            name = old.name
            old.name = f"{old.name}.fused"
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name = name
            new.type = old.type
            new.shape = old.shape
    model.graph.remove(node, safe=True)


APART: dict[str, Callable[[ir.Model, ir.Node], None]] = {
    "BiasGelu": _gelu("Gelu"),
    "FastGelu": _gelu("FastGelu", MICROSOFT),
    NORMS["LayerNormalization"]: _norm("LayerNormalization", 4),
    NORMS["RMSNormalization"]: _norm("RMSNormalization", 3),
}
