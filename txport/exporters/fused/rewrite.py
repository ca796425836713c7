"""Rewrite of a graph to quantised matrices: values, scales, and the operators that read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from torch import nn

from txport.bundles.forms import PLAIN, Form, Stored
from txport.checkpoints.weights.packed import PackedReader
from txport.checkpoints.weights.streamed import Read
from txport.errors import UnsupportedError
from txport.exporters.fused.packs import MICROSOFT, parts_of, stored_as
from txport.exporters.fused.quantize import Quantized, joined, pack, quantize, quantized_of, shapes, unfolded
from txport.exporters.tracing.trace import weight_names
from txport.models.parts import Linear
from txport.system.arrays import Array


class Matrix:
    """A matrix in one storage form. All is computed on demand; only the scales and columns in fp32 are cached.

    `packed` are the matrices in 4 bits of which it is made, row after row, if another tool has quantised it; `rounded`
    is the result if it was quantised before.
    """

    def __init__(
        self,
        tensor: ir.TensorProtocol,
        form: Form,
        scales_in: ir.DataType,
        packed: Sequence[PackedReader] = (),
        rounded: Quantized | None = None,
    ) -> None:
        self._tensor = tensor
        self._form = form
        self._scales_in = scales_in
        self._packed = packed
        self._rounded = rounded
        self._cached: Quantized | None = None  # without values
        out, inputs = tensor.shape.numpy()
        values, scales = shapes(out, inputs, form)
        self.values = self._lazy(self._quantize, dtype_of(form), values)
        self.scales = self._of_scales(scales)
        self.lookup_scales = self._of_scales((*scales, 1))  # the same bytes as `scales`
        self.lookup_zeros = _zeros((*scales, 1), form.bits)
        kind, size = (ir.DataType.UINT4, scales[-1]) if form.kind == "qdq" else (ir.DataType.UINT8, -(-scales[-1] // 2))
        self.zeros = self._lazy(self._read_zeros, kind, (out, size))
        columns = ir.Shape([len(form.columns) + 1, out])
        self.columns = ir.LazyTensor(self._read_columns, ir.DataType.FLOAT, columns)

    @property
    def size(self) -> tuple[int, int]:
        """The shape of the matrix: (out, in)."""
        out, inputs = self._tensor.shape.numpy()
        return out, inputs

    def _of_scales(self, shape: Sequence[int]) -> ir.LazyTensor:
        return ir.LazyTensor(lambda: ir.tensor(self._small().scales.reshape(shape)), self._scales_in, ir.Shape(shape))

    def _read_columns(self) -> ir.TensorProtocol:
        columns = self._small().columns
        assert columns is not None
        return ir.tensor(columns)

    def _read_zeros(self) -> Array:
        zeros = self._small().zeros
        assert zeros is not None
        return zeros if self._form.kind == "qdq" else pack(zeros)

    @staticmethod
    def _lazy(read: Callable[[], Array], kind: ir.DataType, shape: Sequence[int]) -> ir.LazyTensor:
        return ir.LazyTensor(lambda: ir.tensor(read().astype(kind.numpy(), copy=False)), kind, ir.Shape(shape))

    def _small(self) -> Quantized:
        """Return what is cached."""
        if self._cached is None:
            self._quantize()
        assert self._cached is not None
        return self._cached

    def _quantize(self) -> Array:
        quantized = self._quantized()
        self._cached = replace(quantized, values=np.empty(0))  # a slice would keep all of them
        return unfolded(quantized.values, self._form) if self._form.kind == "qdq" else quantized.values

    def _quantized(self) -> Quantized:
        kind = self._scales_in.numpy()
        if self._rounded is not None:
            return self._rounded
        try:
            if self._packed:
                return joined([quantized_of(each.read(), self._form, kind) for each in self._packed])
            return quantize(self._tensor.numpy(), self._form, kind)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self._tensor.name} can't be quantised: {error}") from error


def dtype_of(form: Form) -> ir.DataType:
    """Return the type of the numbers of a quantised matrix."""
    if form.kind == "qdq":
        return ir.DataType.INT8 if form.bits == 8 else ir.DataType.UINT4
    return ir.DataType.INT8 if form.has_row_scales else ir.DataType.UINT8


def _zeros(shape: Sequence[int], bits: int) -> ir.LazyTensor:
    """Return the zero point of each block; in 4 bits it is in both halves of a byte, since kernels read either."""
    middle = {8: 0x80, 4: 0x88}[bits]
    return ir.LazyTensor(lambda: ir.tensor(np.full(shape, middle, np.uint8)), ir.DataType.UINT8, ir.Shape(shape))


Matrices = dict[tuple[str, Form], Matrix]  # by name of the weight and form


Build = Callable[[ir.Model, ir.Node, Stored, ir.Value, Matrix], Iterator[ir.Node]]


@dataclass(frozen=True)
class Quantising:
    """The operators of quantised matrices on a target.

    `weight_of`: the weight by which a node multiplies, or that it transposes for a product; None for other nodes.
    `linear` and `lookup`: return the nodes that replace such a node or a lookup; the last one computes the same output.
    `scales_in`: dtype of the scales.
    """

    weight_of: Callable[[ir.Node], ir.Value | None]
    linear: Build
    lookup: Build
    scales_in: ir.DataType


def apply_forms(
    model: ir.Model,
    forms: Mapping[str, Form],
    tables: Collection[str],
    matrices: Matrices,
    how: Quantising,
    read: Read | None = None,
    packed: Mapping[str, PackedReader] = MappingProxyType({}),
) -> dict[str, Stored]:
    """Quantise the weights of linear layers and of lookups in `tables`; return initializer -> how it is stored.

    A weight that another operator reads too is not changed.
    `forms`, `tables`: by names of the graph's initializers; weights without a form are not changed. `matrices`: cache
    of matrices shared with other graphs, extended by new ones. `read`: loads weights by the checkpoint's names if the
    graph's are rounded; None: use the graph's weights. `packed`: the matrices that another tool has quantised, which
    forms with zero points take as they are.
    """
    recorded: dict[str, Stored] = {}
    held: dict[str, tuple[ir.Value, Stored, Matrix]] = {}
    for node in list(model.graph):
        multiplied = how.weight_of(node)
        weight = _table(node, tables) if multiplied is None else multiplied
        form = None if weight is None else forms.get(str(weight.name))
        if weight is None or form is None or _has_other_readers(weight, tables, how):
            continue
        name = str(weight.name)
        if form == PLAIN:
            recorded[name] = stored_as(weight, PLAIN)
            continue
        if name not in held:
            if (name, form) not in matrices:
                given = [packed[part] for part in parts_of(weight) if part in packed] if form.zeros else []
                matrices[name, form] = Matrix(_numbers(weight, read), form, how.scales_in, given)
            matrix = matrices[name, form]
            held[name] = _store(model, weight, form, matrix, is_table=name in tables)
        values, stored, matrix = held[name]
        recorded[str(values.name)] = stored
        build = how.lookup if multiplied is None else how.linear
        _replace(model, node, list(build(model, node, stored, values, matrix)))
    for name in held:
        del model.graph.initializers[name]
    if any(node.domain == MICROSOFT for node in model.graph):
        model.opset_imports[MICROSOFT] = 1
    return recorded


def tables_of(module: nn.Module) -> set[str]:
    """Return the names of the embedding tables of a module, as in a trace."""
    names = weight_names(module)
    return {names[id(each.weight)] for each in module.modules() if isinstance(each, nn.Embedding)}


def tags_of(module: nn.Module) -> dict[str, str]:
    """Return weight name -> tag for each linear layer of a module, with the names of a trace."""
    names = weight_names(module)
    return {names[id(each.weight)]: each.tag for each in module.modules() if isinstance(each, Linear)}


def _numbers(weight: ir.Value, read: Read | None) -> ir.TensorProtocol:
    """Return the unrounded matrix of a weight, or of several packed weights."""
    tensor = weight.const_value
    assert tensor is not None
    if read is None:
        return tensor
    names = parts_of(weight)

    def whole() -> ir.TensorProtocol:
        return ir.tensor(np.concatenate([read(name).detach().float().numpy() for name in names]))

    return ir.LazyTensor(whole, ir.DataType.FLOAT, ir.Shape(tensor.shape.numpy()), name=" and ".join(names))


def _replace(model: ir.Model, node: ir.Node, made: Sequence[ir.Node]) -> None:
    """Replace a node by `made`, whose last node computes the same output."""
    model.graph.insert_before(node, made)
    old = node.outputs[0]
    new = made[-1].outputs[0]
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = old.name
    new.shape = old.shape
    new.type = old.type
    model.graph.remove(node, safe=True)


def _table(node: ir.Node, tables: Collection[str]) -> ir.Value | None:
    """Return the table in `tables` from which a node gathers rows, or None."""
    table = node.inputs[0] if node.op_type == "Gather" else None
    return table if table is not None and table.is_initializer() and table.name in tables else None


def _has_other_readers(weight: ir.Value, tables: Collection[str], how: Quantising) -> bool:
    """True if a node that is neither a linear layer nor a lookup reads a weight."""
    readers = [node for node, _ in weight.uses()]
    return any(how.weight_of(node) is not weight and _table(node, tables) is not weight for node in readers)


def _store(
    model: ir.Model, weight: ir.Value, form: Form, matrix: Matrix, *, is_table: bool
) -> tuple[ir.Value, Stored, Matrix]:
    """Add the values to the graph; return them, how they are stored, and the matrix. Operators add its scales."""
    name = str(weight.name)
    values = add_initializer(model, f"{name}.{form.describe().replace(' ', '-')}", matrix.values)
    lookup = f"{values.name}.lookup.scale" if is_table and form.kind == "blocks" else None
    return values, stored_as(weight, form, f"{name}.scale", lookup), matrix


def add_initializer(model: ir.Model, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    """Add an initializer to a graph and return it."""
    tensor = ir.tensor(array) if isinstance(array, np.ndarray) else array
    value = ir.Value(name=name, const_value=tensor)
    value.shape = ir.Shape(tensor.shape.numpy())
    value.type = ir.TensorType(tensor.dtype)
    model.graph.register_initializer(value)
    return value


def once(model: ir.Model, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    """Return the initializer with this name; add it if it does not exist."""
    return model.graph.initializers.get(name) or add_initializer(model, name, array)


def in_blocks(
    model: ir.Model,
    x: ir.Value | None,
    values: ir.Value,
    stored: Stored,
    matrix: Matrix,
    bias: ir.Value | None = None,
    **attributes: int,
) -> ir.Node:
    """Return a MatMulNBits node x @ weight.T + bias for a weight in blocks."""
    assert stored.form is not None
    out, blocks = matrix.scales.shape.numpy()
    block = stored.form.block or 1
    sizes = {"K": blocks * block, "N": out, "bits": stored.form.bits, "block_size": block}
    inputs: list[ir.Value | None] = [x, values, once(model, str(stored.scales), matrix.scales)]
    zeros = once(model, stored.zeros, matrix.zeros) if stored.form.zeros else None
    if zeros is not None or bias is not None:
        inputs += [zeros] if bias is None else [zeros, None, bias]
    return ir.node("MatMulNBits", inputs, attributes={**sizes, **attributes}, domain=MICROSOFT)


def looked_up(
    model: ir.Model,
    tokens: ir.Value | None,
    values: ir.Value,
    stored: Stored,
    matrix: Matrix,
    dims: int,
    *,
    has_zeros: bool = False,
) -> Iterator[ir.Node]:
    """Yield nodes that look up rows of an embedding in blocks: tokens with `dims` dims -> (..., D).

    `has_zeros`: also pass the zero points.
    """
    assert stored.form is not None
    name = str(stored.lookup_scales)
    inputs = [values, tokens, once(model, name, matrix.lookup_scales)]
    if has_zeros:
        inputs.append(once(model, str(stored.lookup_zeros), matrix.lookup_zeros))
    attributes = {"gather_axis": 0, "quantize_axis": 2, "block_size": stored.form.block, "bits": stored.form.bits}
    yield (rows := ir.node("GatherBlockQuantized", inputs, attributes=attributes, domain=MICROSOFT))
    joined = once(model, f"{name}.shape{f'.{dims}' if dims > 1 else ''}", np.array([*[0] * dims, -1]))
    yield ir.node("Reshape", [rows.outputs[0], joined])
