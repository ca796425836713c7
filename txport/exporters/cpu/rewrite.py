"""Every matrix of a graph in the form that was chosen for it: values, scales, and the operators that read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from txport.bundles.forms import DYNAMIC, PLAIN, Form, Stored
from txport.exporters.cpu.quantize import quantize, shapes
from txport.exporters.fused.packs import MICROSOFT, is_linear, stored_as

Array = NDArray[Any]

MIDDLE, TINY = 128, 1e-30  # what stands for zero in 8 bits; more than nothing, for rows of zeros


class Matrix:
    """A matrix in one form, which is computed when its values or its scales are asked for; only these are kept."""

    def __init__(self, tensor: ir.TensorProtocol, form: Form) -> None:
        self._tensor, self._form, self._scales = tensor, form, list[Array]()
        out, inputs = tensor.shape.numpy()
        values, scales = shapes(out, inputs, form)
        kind = ir.DataType.INT8 if form.has_row_scales else ir.DataType.UINT8
        self.values = ir.LazyTensor(lambda: ir.tensor(self._quantize()), kind, ir.Shape(values))
        self.scales = self._of_scales(scales)
        self.lookup_scales = self._of_scales((*scales, 1))  # the same bytes as the scales of a product

    def _of_scales(self, shape: Sequence[int]) -> ir.LazyTensor:
        def read() -> ir.TensorProtocol:
            if not self._scales:
                self._quantize()
            return ir.tensor(self._scales[0].reshape(shape))

        return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(shape))

    def _quantize(self) -> Array:
        quantized = quantize(self._tensor.numpy(), self._form)
        self._scales[:] = [quantized.scales]
        return quantized.values


Matrices = dict[tuple[str, Form], Matrix]  # by the name of the weight


def apply_forms(
    model: ir.Model, forms: Mapping[str, Form], tables: Collection[str], matrices: Matrices
) -> dict[str, Stored]:
    """Put every linear map and every lookup in `tables` into the form of its weight; -> each initializer, recorded.

    `forms` and `tables` go by the names of the graph's initializers; what has no form stays as it is. What other graphs
    have in the same form is taken from `matrices`, and what is new is added.
    """
    recorded: dict[str, Stored] = {}
    held: dict[str, tuple[ir.Value, Stored, Matrix]] = {}
    for node in list(model.graph):
        weight = node.inputs[1] if is_linear(node) else _table(node, tables)
        form = None if weight is None else forms.get(str(weight.name))
        if weight is None or form is None:
            continue
        name = str(weight.name)
        if form == PLAIN:
            recorded[name] = stored_as(weight, PLAIN)
            continue
        if name not in held:
            held[name] = _store(model, weight, form, matrices, is_table=name in tables)
        values, stored, matrix = held[name]
        recorded[str(values.name)] = stored
        build = _linear if is_linear(node) else _lookup
        _replace(model, node, list(build(model, node, stored, values, matrix)))
    for name in held:
        del model.graph.initializers[name]
    if any(node.domain == MICROSOFT for node in model.graph):
        model.opset_imports[MICROSOFT] = 1
    return recorded


def _replace(model: ir.Model, node: ir.Node, made: Sequence[ir.Node]) -> None:
    """Nodes in the place of one; the last gives what it gave."""
    model.graph.insert_before(node, made)
    old, new = node.outputs[0], made[-1].outputs[0]
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, new.shape, new.type = old.name, old.shape, old.type
    model.graph.remove(node, safe=True)


def _table(node: ir.Node, tables: Collection[str]) -> ir.Value | None:
    """The table of tokens that a node looks rows up in."""
    table = node.inputs[0] if node.op_type == "Gather" else None
    return table if table is not None and table.is_initializer() and table.name in tables else None


def _store(
    model: ir.Model, weight: ir.Value, form: Form, matrices: Matrices, *, is_table: bool
) -> tuple[ir.Value, Stored, Matrix]:
    """-> the values in the graph, what they are, and the matrix, whose scales each operator adds in its own shape."""
    assert weight.const_value is not None
    name = str(weight.name)
    matrix = matrices.setdefault((name, form), Matrix(weight.const_value, form))
    values = add_initializer(model, f"{name}.{form.describe().replace(' ', '-')}", matrix.values)
    lookup = f"{values.name}.lookup.scale" if is_table and form.kind == "blocks" else None
    return values, stored_as(weight, form, f"{name}.scale", lookup), matrix


def add_initializer(model: ir.Model, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    """Give a graph one more weight."""
    tensor = ir.tensor(array) if isinstance(array, np.ndarray) else array
    value = ir.Value(name=name, const_value=tensor)
    value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
    model.graph.register_initializer(value)
    return value


def _linear(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """X @ weight.T + bias in the operator of the form."""
    scale, form = _once(model, str(stored.scales), matrix.scales), stored.form
    assert form is not None
    x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if form == DYNAMIC:
        yield ir.node("DynamicQuantizeMatMul", [x, values, scale, None, bias], domain=MICROSOFT)
    elif form.kind in ("rows", "invariant"):
        zeros = _zeros(model, matrix.scales.shape.numpy()[0])
        product = _each_row if form.kind == "invariant" else _all_rows
        made = product(model, x, [values, scale, zeros])
        yield from made
        if bias is not None:
            yield ir.node("Add", [made[-1].outputs[0], bias])
    else:
        out, blocks = matrix.scales.shape.numpy()
        sizes = {"K": blocks * (form.block or 1), "N": out, "bits": form.bits, "block_size": form.block}
        attributes = {**sizes, "accuracy_level": 4}
        inputs: list[ir.Value | None] = [x, values, scale, None, None, bias]
        yield ir.node("MatMulNBits", inputs, attributes=attributes, domain=MICROSOFT)


def _all_rows(_: ir.Model, x: ir.Value | None, weight: Sequence[ir.Value]) -> list[ir.Node]:
    """X @ weight.T, the activations quantised with one scale for all rows."""
    ready = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    return [ready, ir.node("QGemm", [*ready.outputs, *weight], attributes={"transB": 1}, domain=MICROSOFT)]


def _each_row(model: ir.Model, x: ir.Value | None, weight: Sequence[ir.Value]) -> list[ir.Node]:
    """X @ weight.T, each row of the activations divided by its largest value before it is quantised."""
    axes, tiny, step, middle = (
        _once(model, f"row.{name}", np.array(value, dtype))
        for name, value, dtype in (
            ("axes", [1], np.int64),
            ("tiny", TINY, np.float32),
            ("step", 1 / 127, np.float32),
            ("middle", MIDDLE, np.uint8),
        )
    )
    size = ir.node("Abs", [x])
    top = ir.node("ReduceMax", [size.outputs[0], axes])
    largest = ir.node("Max", [top.outputs[0], tiny])  # (R, 1)
    near = ir.node("Div", [x, largest.outputs[0]])
    ready = ir.node("QuantizeLinear", [near.outputs[0], step, middle])
    inputs = [ready.outputs[0], step, middle, *weight]
    result = ir.node("QGemm", inputs, attributes={"transB": 1}, domain=MICROSOFT)
    scaled = ir.node("Mul", [result.outputs[0], largest.outputs[0]])
    return [size, top, largest, near, ready, result, scaled]


def _once(model: ir.Model, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    return model.graph.initializers.get(name) or add_initializer(model, name, array)


def _zeros(model: ir.Model, size: int) -> ir.Value:
    return _once(model, f"zeros.{size}", np.zeros(size, np.int8))


def _lookup(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Rows of an embedding by token: (R,) -> (R, D)."""
    tokens = node.inputs[1]
    form = stored.form
    assert form is not None
    if form.has_row_scales:
        table = _once(model, str(stored.scales), matrix.scales)
        yield (row := ir.node("Gather", [values, tokens], attributes={"axis": 0}))
        yield (scale := ir.node("Gather", [table, tokens], attributes={"axis": 0}))
        yield ir.node("DequantizeLinear", [row.outputs[0], scale.outputs[0]], attributes={"axis": 0})
        return
    name = str(stored.lookup_scales)
    lookup = _once(model, name, matrix.lookup_scales)
    attributes = {"gather_axis": 0, "quantize_axis": 2, "block_size": form.block, "bits": form.bits}
    yield (rows := ir.node("GatherBlockQuantized", [values, tokens, lookup], attributes=attributes, domain=MICROSOFT))
    joined = add_initializer(model, f"{name}.shape", np.array([0, -1]))
    yield ir.node("Reshape", [rows.outputs[0], joined])
