"""What happens to a graph between its trace and the disk: a list of passes, each saying how often it fired."""

from __future__ import annotations

import logging
from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import PassBase
from onnx_ir.passes import common as passes

from txport.bundles.ports import Graph
from txport.exporters.cuda.fusions import fuse_biases, fuse_residuals
from txport.exporters.fused.packs import pack_projections

Pass = Callable[[ir.Model, Graph], int]


def library(make: Callable[[], PassBase]) -> Pass:
    """A pass of the ONNX libraries; it counts the nodes that it took away."""

    def run(model: ir.Model, graph: Graph) -> int:
        before = len(model.graph)
        make()(model)
        return before - len(model.graph)

    return run


def fold_constants(model: ir.Model, graph: Graph) -> int:
    """Compute what is known, but keep the weights as the checkpoint has them: their transposes stay nodes."""
    if not any(map(_is_known, model.graph)):
        return 0
    from onnxscript import optimizer

    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it tells of each node that it leaves alone

    before = len(model.graph)
    optimizer.fold_constants(model, should_fold=lambda node: False if node.op_type == "Transpose" else None)
    return before - len(model.graph)


def _is_known(node: ir.Node) -> bool:
    """Whether what a node gives follows from constants and weights alone."""
    given = [value for value in node.inputs if value is not None]
    known = all(each.is_initializer() or _is_constant(each.producer()) for each in given)
    return bool(given) and known and node.op_type != "Transpose"


def _is_constant(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Constant"


def name_dims(model: ir.Model, graph: Graph) -> int:
    """Write the contract's dims on the outputs."""
    for value, port in zip(model.graph.outputs, graph.outputs, strict=True):
        value.shape = ir.Shape(port.dims)
    return len(graph.outputs)


PACK = "pack projections"
CLEANING: dict[str, Pass] = {
    "fold constants": fold_constants,
    "remove unused nodes": library(passes.RemoveUnusedNodesPass),
    "remove identities": library(passes.IdentityEliminationPass),
}
FINISHING: dict[str, Pass] = {
    "merge equal nodes": library(passes.CommonSubexpressionEliminationPass),
    "lift constants": library(lambda: passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)),
    "name dims": name_dims,
}
PORTABLE: dict[str, Pass] = {**CLEANING, **FINISHING}
CPU: dict[str, Pass] = {
    **CLEANING,
    PACK: pack_projections,
    "drop what is left over": library(passes.RemoveUnusedNodesPass),
    **FINISHING,
}
CUDA: dict[str, Pass] = {
    **CLEANING,
    PACK: pack_projections,
    "fuse biases": fuse_biases,
    "fuse residuals": fuse_residuals,
    "drop what is left over": library(passes.RemoveUnusedNodesPass),
    **FINISHING,
}
