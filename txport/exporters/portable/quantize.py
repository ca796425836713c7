"""Weights in 8 and 4 bits by standard operators: blocks of inputs with a scale, and DequantizeLinear before a product.

ONNX Runtime turns DequantizeLinear and MatMul into its product of blocks (MatMulNBits), which rounds activations as
that of the cpu target does. OpenVINO keeps the weights in few bits, too. Other programs compute the same in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import UnsupportedError
from txport.exporters.cpu.choose import in_eight_bits
from txport.exporters.fused.packs import weight_of
from txport.exporters.fused.rewrite import Matrix, Quantising, once, tables_of, tags_of

QDQ_OPSET = 21  # first opset whose DequantizeLinear has blocks
SIZES = (32, 16)  # of blocks, the first that fits; OpenVINO rounds activations in blocks of 32 only


def forms_of(
    checkpoint: Checkpoint, manifest: Manifest, models: Mapping[str, ir.Model], chosen: Mapping[str, Form]
) -> dict[str, Form]:
    """Return initializer -> form for the graphs of an export, none of them `chosen`.

    Embeddings and, in int4, the matrices that gain most from it have 8 bits. These stay in fp32: matrices without whole
    blocks, linear layers without a tag, such as heads, and matrices that several products of a graph read, which ONNX
    Runtime does not fuse. int4 takes matrices that another tool has packed as they are. Raises `UnsupportedError` if no
    matrix has whole blocks.
    """
    tags, tables = tags_of(checkpoint.outline), tables_of(checkpoint.outline)
    packed = checkpoint.packed if manifest.precision == "int4" else {}
    wide = {*tables, *in_eight_bits(tags)} if manifest.facts.is_causal else {*tables}
    known = {*tags, *tables}
    forms: dict[str, Form] = {}
    for node in (node for model in models.values() for node in model.graph):
        weight = node.inputs[0] if node.op_type == "Gather" else _weight_of(node)
        if weight is None or (name := str(weight.name)) not in known or _products_of(weight) > 1:
            continue
        assert weight.shape is not None
        block = next((size for size in SIZES if weight.shape.numpy()[1] % size == 0), None)
        if block is not None:
            is_small = manifest.precision == "int4" and (name in packed if packed else name not in wide)
            forms[name] = Form("qdq", 4, block, zeros=True) if is_small else Form("qdq", 8, block)
    if not forms:
        need = f"{manifest.precision} needs matrices of whole blocks of {min(SIZES)} inputs"
        raise UnsupportedError(f"{need}, and this model has none; export it with precision='fp32'")
    return forms


def _weight_of(node: ir.Node) -> ir.Value | None:
    """Return the weight (out, in) that a node transposes for a product, or by which a Gemm multiplies, or None."""
    weight = node.inputs[0] if node.op_type == "Transpose" else weight_of(node)
    return weight if weight is not None and weight.is_initializer() else None


def _products_of(weight: ir.Value) -> int:
    """Return the number of products of a graph that read a weight."""
    readers = [node for node, _ in weight.uses()]
    turned = sum(len(list(node.outputs[0].uses())) for node in readers if node.op_type == "Transpose")
    return turned + sum(node.op_type == "Gemm" for node in readers)


def _linear(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield the nodes that make the transposed weight (in, out), and those of a Gemm's product and bias."""
    assert stored.form is not None
    given = [values, once(model, str(stored.scales), matrix.scales)]
    if stored.form.zeros:
        given.append(once(model, stored.zeros, matrix.zeros))
    turned = [ir.node("Transpose", [each], attributes={"perm": [1, 0]}) for each in given]
    yield from turned
    attributes = {"axis": 0, "block_size": stored.form.block or 1}
    yield (weight := ir.node("DequantizeLinear", [each.outputs[0] for each in turned], attributes=attributes))
    if node.op_type == "Gemm":
        yield (product := ir.node("MatMul", [node.inputs[0], weight.outputs[0]]))
        if len(node.inputs) > 2:
            yield ir.node("Add", [product.outputs[0], node.inputs[2]])


def _lookup(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield nodes that look up rows of an embedding: (...) -> (..., D).

    They are plain, because OpenVINO dequantises no blocks of rows that are not constant.
    """
    assert stored.form is not None
    shape = node.outputs[0].shape
    assert shape is not None
    dims = len(shape) - 1
    inputs, block = matrix.size[1], stored.form.block or 1
    blocks = once(model, f"blocks.{dims}.{inputs}.{block}", np.array([*[0] * dims, inputs // block, block]))
    whole = once(model, f"blocks.{dims}.joined", np.array([*[0] * dims, -1]))
    scales = once(model, str(stored.scales), matrix.scales)
    yield (row := ir.node("Gather", [values, node.inputs[1]], attributes={"axis": 0}))
    yield (scale := ir.node("Gather", [scales, node.inputs[1]], attributes={"axis": 0}))
    yield (wide := ir.node("Cast", [row.outputs[0]], attributes={"to": ir.DataType.FLOAT}))
    yield (split := ir.node("Reshape", [wide.outputs[0], blocks]))
    yield (each := ir.node("Unsqueeze", [scale.outputs[0], once(model, "blocks.last", np.array([-1]))]))
    yield (scaled := ir.node("Mul", [split.outputs[0], each.outputs[0]]))
    yield ir.node("Reshape", [scaled.outputs[0], whole])


STANDARD = Quantising(_weight_of, _linear, _lookup, ir.DataType.FLOAT)
