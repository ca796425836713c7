"""Weights in 8 and 4 bits on the device: choice of matrices and blocks, and their operators.

Products use weights in blocks with 16-bit scales and compute in 16 bits (MatMulNBits); lookups of embeddings use the
same blocks, so that a tied matrix is stored once. Lookups have explicit zero points: without them, kernels of some
versions of ONNX Runtime use 0 (microsoft/onnxruntime#31692). All kernels of products use the middle of the range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from txport.bundles.forms import BLOCKS, Form, Stored, blocks_of
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import UnsupportedError
from txport.exporters.fused.packs import is_product, parts_of, weight_of
from txport.exporters.fused.rewrite import Matrix, Quantising, in_blocks, looked_up, tables_of, tags_of

ALIGNED = 8  # kernels process this many rows at a time; for other counts, each step unpacks the whole matrix
SIZES = {8: BLOCKS, 4: (32, 16)}  # block sizes, the first that fits is used; small blocks in 4 bits
LEAST_BLOCK = min(BLOCKS)
BITS = {"int8": 8, "int4": 4}


def forms_of(
    checkpoint: Checkpoint, manifest: Manifest, models: Mapping[str, ir.Model], chosen: Mapping[str, Form]
) -> dict[str, Form]:
    """Return initializer -> form for the graphs of an export, none of them `chosen`; see `choose_forms`.

    Raises `UnsupportedError` if the kernels support none of the matrices.
    """
    source = checkpoint.outline
    forms = choose_forms(models, manifest.precision, tables_of(source), tags_of(source), checkpoint.packed)
    if not forms:
        need = f"{manifest.precision} on cuda needs matrices of whole blocks of {LEAST_BLOCK} inputs"
        raise UnsupportedError(
            f"{need} and {ALIGNED} outputs, and this model has none; export it with precision='fp16'"
        )
    return forms


def choose_forms(
    models: Mapping[str, ir.Model],
    precision: str,
    tables: Collection[str],
    tags: Collection[str],
    packed: Collection[str] = (),
) -> dict[str, Form]:
    """Return initializer -> form for all matrices that the kernels support; the others are not quantised.

    `tables`: names of embedding tables; `tags`: names of the matrices of linear layers with a tag; `packed`: those that
    another tool has quantised, which int4 takes as they are, beside 8 bits of the others.
    """
    bits = 8 if packed else BITS[precision]
    weights = {name: value for model in models.values() for name, value in model.graph.initializers.items()}
    nodes = (node for model in models.values() for node in filter(is_product, model.graph))
    products = [node.inputs[1] for node in nodes if node.inputs[1] is not None]
    multiplied = {str(each.name) for each in products}
    untagged = {str(each.name) for each in products if not all(part in tags for part in parts_of(each))}
    found: dict[str, Form] = {}
    for name in (name for name in weights if name in (multiplied - untagged) | {*tables}):
        rows, inputs = _shape(weights[name])
        block = next((size for size in SIZES[bits] if inputs % size == 0), None)
        if precision == "int4" and packed and all(part in packed for part in parts_of(weights[name])):
            found[name] = blocks_of(4, SIZES[4][0], zeros=True)
        elif block is not None and not (name in multiplied and rows % ALIGNED):
            found[name] = blocks_of(bits, block)
    return found


def _shape(weight: ir.Value) -> Sequence[int]:
    assert weight.const_value is not None
    return weight.const_value.shape.numpy()


def _linear(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield the node of x @ weight.T, for x of any dims."""
    yield in_blocks(model, node.inputs[0], values, stored, matrix)


def _lookup(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield nodes that look up rows of an embedding: (...) -> (..., D)."""
    shape = node.outputs[0].shape
    assert shape is not None
    yield from looked_up(model, node.inputs[1], values, stored, matrix, len(shape) - 1, has_zeros=True)


ON_DEVICE = Quantising(weight_of, _linear, _lookup, ir.DataType.FLOAT16)
