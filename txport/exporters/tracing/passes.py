"""Graph passes between the trace and the file. Each pass returns the number of its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import PassBase
from onnx_ir.passes import common as passes

from txport.exporters.cuda.fusions import fuse_biases, fuse_residuals
from txport.exporters.fused.packs import pack_projections
from txport.targets.ports import Graph

Pass = Callable[[ir.Model, Graph], int]


def library(make: Callable[[], PassBase]) -> Pass:
    """Wrap a pass of onnx_ir; it returns the number of nodes removed."""

    def run(model: ir.Model, graph: Graph) -> int:
        before = len(model.graph)
        make()(model)
        return before - len(model.graph)

    return run


def fold_constants(model: ir.Model, graph: Graph) -> int:
    """Fold constants. Nodes that read weights stay, so that weights are those of the checkpoint, in its layout."""
    if not any(map(_is_known, model.graph)):
        return 0
    from onnxscript import optimizer

    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it logs each node that it does not fold

    before = len(model.graph)
    optimizer.fold_constants(model, should_fold=lambda node: False if _reads_weight(node) else None)
    return before - len(model.graph)


def _is_known(node: ir.Node) -> bool:
    """True if all inputs of a node are constants."""
    given = [value for value in node.inputs if value is not None]
    return bool(given) and all(_is_constant(each.producer()) for each in given)


def _reads_weight(node: ir.Node) -> bool:
    return any(value is not None and value.is_initializer() for value in node.inputs)


def _is_constant(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Constant"


def name_dims(model: ir.Model, graph: Graph) -> int:
    """Set the dims of the ports on the outputs."""
    for value, port in zip(model.graph.outputs, graph.outputs, strict=True):
        value.shape = ir.Shape(port.dims)
    return len(graph.outputs)


def drop_names_of_dims(model: ir.Model, graph: Graph) -> int:
    """Remove names of dims that are no port's: tract infers them as expressions of those, and refuses another name."""
    known = {dim for port in (*graph.inputs, *graph.outputs) for dim in port.dims}
    dropped = 0
    for value in (value for node in model.graph for value in node.outputs if value.shape is not None):
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
        kept = [dim if isinstance(dim, int) or dim in known else None for dim in dims]
        value.shape = ir.Shape(kept)
        dropped += kept != dims
    return dropped


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
PORTABLE: dict[str, Pass] = {**CLEANING, **FINISHING, "drop names of dims": drop_names_of_dims}
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
