"""Weights in 8 and 4 bits: which form each matrix takes, how it gets there, and how it is read back.

Forms of a matrix (out, in), all symmetric:

- dynamic int8: one scale a row of `out`; activations are quantised as they come (DynamicQuantizeMatMul). The
  fastest from a few rows on.
- int8 rows: the same, but stored row by row, so that an embedding and a projection can be one tensor.
- int8 invariant: stored so too; each row of activations has a scale of its own. Whole numbers are summed without
  rounding, so what comes of a row does not depend on the others, nor on how many there are.
- blocks: 8 or 4 bits with a scale for every block of inputs (MatMulNBits at accuracy level 4); activations are
  quantised row by row. They read the fewest bytes a weight, and win at one or two rows. In 4 bits, the kernels of
  small blocks sum each row alike; those of larger ones work on two rows at a time, and sum a last odd row otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from txport.bundles.ports import STEP
from txport.exporters.fused import MICROSOFT
from txport.exporters.fusions import is_linear, split_name

Array = NDArray[Any]

BLOCKS = (128, 64, 32, 16)  # the largest that divides the inputs is taken: fewer scales to read
ALIKE = (32, 16)  # blocks whose sums, in 4 bits, do not depend on how many rows there are
FEW_ROWS = 2  # up to here, reading weights is all the work
DYNAMIC, ROWS, INVARIANT = "dynamic int8", "int8 rows", "int8 invariant"
WHOLE_ROWS = (DYNAMIC, ROWS, INVARIANT)  # one scale a row of `out`
ENDS = (-8.0, -8.5, -9.0, -7.5, -7.0, 7.0)  # where the largest value of a 4-bit block may come to lie
MIDDLE, TINY = 128, 1e-30  # what stands for zero in 8 bits; more than nothing, for rows of zeros
PLAIN = "fp32"  # the form of a matrix that is left as it is


@dataclass(frozen=True)
class Quantized:
    """One matrix in fewer bits: `values` as the operator wants them, and their scales, float32."""

    form: str
    values: Array
    scales: Array


def choose_form(name: str, shape: Sequence[int], precision: str, role: str, rows: int | None) -> str:
    """The form for a matrix (out, in) of one graph: the fastest for a step of so many rows.

    For None, the fastest in which no row depends on the others, nor on how many there are.
    """
    block = next((size for size in (ALIKE if rows is None else BLOCKS) if shape[1] % size == 0), None)
    if block and precision == "int4" and (role == STEP or bears_four_bits(name)):
        return f"4-bit blocks of {block}"
    if rows is None:
        return INVARIANT
    if block and role == STEP and rows <= FEW_ROWS:
        return f"8-bit blocks of {block}"
    return DYNAMIC


def bears_four_bits(name: str) -> bool:
    """Whether a matrix of the encoder, which works on many rows at once, is held in 4 bits to save space.

    Those with the most bytes for the time that they lose: the feed-forward's second half and the maps to the
    decoder's keys and values.
    """
    return ".feed_forward.outer." in name or ".cross_attention." in name


def choose_forms(
    models: dict[str, ir.Model], precision: str, rows: int | None, keep: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """Graph -> weight -> form. A weight that several nodes or graphs read has one form, fit for all of them.

    Those named in `keep` stay in fp32, and what is packed with them.
    """
    forms: dict[str, dict[str, str]] = {role: {} for role in models}
    looked_up = {name for model in models.values() for name in _tables(model)}
    for role, model in models.items():
        for node in filter(is_linear, model.graph):
            name, shape = _weight(node)
            forms[role][name] = choose_form(name, shape, precision, role, rows)
    for role, model in models.items():
        for name, shape in _tables(model).items():
            projection = forms.get(STEP, {}).get(name)
            forms[role][name] = projection or choose_form(name, shape, precision, STEP, rows)
    return {
        role: {name: _settled(name, form, looked_up, keep) for name, form in each.items()}
        for role, each in forms.items()
    }


def _settled(name: str, form: str, looked_up: Collection[str], keep: Collection[str]) -> str:
    if any(part in keep for part in split_name(name)):
        return PLAIN
    return ROWS if form == DYNAMIC and name in looked_up else form


def _weight(node: ir.Node) -> tuple[str, Sequence[int]]:
    weight = node.inputs[1]
    assert weight is not None
    assert weight.name is not None
    assert weight.const_value is not None
    return weight.name, weight.const_value.shape.numpy()


def _tables(model: ir.Model) -> dict[str, Sequence[int]]:
    """The embeddings that a graph looks tokens up in: name -> shape."""
    return {
        str(table.name): table.const_value.shape.numpy()
        for node in model.graph
        if (table := _table(node)) is not None and table.const_value is not None
    }


def _table(node: ir.Node) -> ir.Value | None:
    table = node.inputs[0] if node.op_type == "Gather" else None
    is_embedding = table is not None and table.is_initializer() and not str(table.name).endswith(".positions")
    return table if is_embedding else None


def quantize(matrix: Array, form: str) -> Quantized:
    """A matrix (out, in) in one of the forms."""
    if form in WHOLE_ROWS:
        scales = _safe(np.abs(matrix).max(axis=1) / 127)
        values = np.clip(np.rint(matrix / scales[:, None]), -127, 127).astype(np.int8)
        return Quantized(form, np.ascontiguousarray(values.T) if form == DYNAMIC else values, scales)
    bits, block = read_blocks(form)
    blocks = matrix.reshape(len(matrix), -1, block)  # (out, in / block, block)
    scales = best_scales(blocks, bits)
    half = 2 ** (bits - 1)
    values = (np.clip(np.rint(blocks / scales[..., None]), -half, half - 1) + half).astype(np.uint8)
    if bits == 4:
        values = values[..., 0::2] | (values[..., 1::2] << 4)  # the first of two inputs lies in the lower half
    return Quantized(form, values, scales)


def dequantize(quantized: Quantized) -> Array:
    """The matrix (out, in) that the kernels compute with, float32."""
    if quantized.form in WHOLE_ROWS:
        values = quantized.values.T if quantized.form == DYNAMIC else quantized.values
        by_row: Array = values.astype(np.float32) * quantized.scales[:, None]
        return by_row
    bits, _ = read_blocks(quantized.form)
    values = quantized.values
    if bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:2], -1)
    centred = values.astype(np.float32) - 2 ** (bits - 1)
    matrix: Array = (centred * quantized.scales[..., None]).reshape(len(values), -1)
    return matrix


def steps(quantized: Quantized) -> Array:
    """The size of one step for each weight (out, in): the scale it is multiplied with, without its sign."""
    scales = np.abs(quantized.scales)
    if quantized.form in WHOLE_ROWS:
        size = quantized.values.shape[0 if quantized.form == DYNAMIC else 1]
        return np.repeat(scales[:, None], size, axis=1)
    return np.repeat(scales, read_blocks(quantized.form)[1], axis=1)


def read_name(name: str) -> tuple[str, str | None]:
    """`a.weight.int8-rows` -> `a.weight`, `int8 rows`; None for what is not quantised."""
    base, _, last = name.rpartition(".")
    form = last.replace("-", " ").replace("8 bit", "8-bit").replace("4 bit", "4-bit")
    return (base, form) if form in WHOLE_ROWS or "-bit blocks of " in form else (name, None)


def read_bits(form: str) -> int:
    """Of each weight of a quantised form."""
    return 8 if form in WHOLE_ROWS else read_blocks(form)[0]


def read_blocks(form: str) -> tuple[int, int]:
    """`4-bit blocks of 128` -> 4, 128."""
    bits, block = form.split("-bit blocks of ")
    return int(bits), int(block)


def best_scales(blocks: Array, bits: int) -> Array:
    """Blocks (..., block) -> scales (...): the largest value reaches an end of the range, in 4 bits a little beyond.

    Of a few ends for the largest value, the one with the least squared error: outliers may be cut if that lets
    the many be finer. A negative scale lets the largest value use the longer, negative side.
    """
    half = 2 ** (bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    if bits == 8:
        return _safe(np.abs(largest) / (half - 1))
    best, least = np.ones(largest.shape, np.float32), np.full(largest.shape, np.inf)
    for end in ENDS:
        scales = _safe(largest / end)
        error = blocks - scales[..., None] * np.clip(np.rint(blocks / scales[..., None]), -half, half - 1)
        squared = sums_of_squares(error)
        best, least = np.where(squared < least, scales, best), np.minimum(squared, least)
    return best


def sums_of_squares(values: Array) -> Array:
    """Over the last axis, in float64 and one after the other, so that they are the same on every processor.

    `sum` adds in an order of its own, and in float32 two sums that are nearly equal may then compare either way.
    """
    sums: Array = np.square(values, dtype=np.float64).cumsum(axis=-1)[..., -1]
    return sums


def _safe(scales: Array) -> Array:
    safe: Array = np.where(scales == 0, 1, scales).astype(np.float32)
    return safe


def apply_forms(model: ir.Model, forms: dict[str, str]) -> int:
    """Put every linear map and every embedding of a graph into its form; -> how many matrices that were."""
    held: dict[str, tuple[ir.Value, Array]] = {}
    for node in list(model.graph):
        weight = node.inputs[1] if is_linear(node) else _table(node)
        if weight is None or forms[str(weight.name)] == PLAIN:
            continue
        name, form = str(weight.name), forms[str(weight.name)]
        if name not in held:
            held[name] = _store(model, weight, form)
        build = _linear if is_linear(node) else _lookup
        made = list(build(model, node, form, *held[name]))
        model.graph.insert_before(node, made)
        old, new = node.outputs[0], made[-1].outputs[0]
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name, new.shape, new.type = old.name, old.shape, old.type
        model.graph.remove(node, safe=True)
    for name in held:
        del model.graph.initializers[name]
    if any(node.domain == MICROSOFT for node in model.graph):
        model.opset_imports[MICROSOFT] = 1
    return len(held)


def _store(model: ir.Model, weight: ir.Value, form: str) -> tuple[ir.Value, Array]:
    """-> the values in the graph, and the scales, which each operator that reads them adds in the shape it wants."""
    assert weight.const_value is not None
    quantized = quantize(weight.const_value.numpy(), form)
    return add_initializer(model, stored_name(str(weight.name), form), quantized.values), quantized.scales


def stored_name(name: str, form: str) -> str:
    """What a matrix is called in the graph: the checkpoint's name and the form."""
    return f"{name}.{form.replace(' ', '-')}"


def scale_name(stored: str) -> str:
    """What the scales of a stored matrix are called: the checkpoint's name and `scale`."""
    return f"{read_name(stored)[0]}.scale"


def lookup_name(stored: str) -> str:
    """What the scales of a matrix in blocks are called in the shape that a lookup wants."""
    return f"{stored}.lookup.scale"


def read_scales(stored: str, tensors: Mapping[str, Array]) -> Array | None:
    """The scales of a stored matrix among the tensors of a graph, those of a lookup if it has no others; else None."""
    if (scales := tensors.get(scale_name(stored))) is not None:
        return scales
    lookup = tensors.get(lookup_name(stored))
    return None if lookup is None else lookup[..., 0]


def add_initializer(model: ir.Model, name: str, array: Array) -> ir.Value:
    """Give a graph one more weight."""
    value = ir.Value(name=name, const_value=ir.tensor(array))
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
    model.graph.register_initializer(value)
    return value


def _linear(model: ir.Model, node: ir.Node, form: str, values: ir.Value, scales: Array) -> Iterator[ir.Node]:
    """X @ weight.T + bias in the operator of the form."""
    scale = _once(model, scale_name(str(values.name)), scales)
    x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if form == DYNAMIC:
        yield ir.node("DynamicQuantizeMatMul", [x, values, scale, None, bias], domain=MICROSOFT)
    elif form in (ROWS, INVARIANT):
        zeros = _zeros(model, int(_weight(node)[1][0]))
        product = _each_row if form == INVARIANT else _all_rows
        made = product(model, x, [values, scale, zeros])
        yield from made
        if bias is not None:
            yield ir.node("Add", [made[-1].outputs[0], bias])
    else:
        bits, block = read_blocks(form)
        out, size = (int(dim) for dim in _weight(node)[1])
        attributes = {"K": size, "N": out, "bits": bits, "block_size": block, "accuracy_level": 4}
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


def _once(model: ir.Model, name: str, array: Array) -> ir.Value:
    return model.graph.initializers.get(name) or add_initializer(model, name, array)


def _zeros(model: ir.Model, size: int) -> ir.Value:
    return _once(model, f"zeros.{size}", np.zeros(size, np.int8))


def _lookup(model: ir.Model, node: ir.Node, form: str, values: ir.Value, scales: Array) -> Iterator[ir.Node]:
    """Rows of an embedding by token: (R,) -> (R, D)."""
    tokens = node.inputs[1]
    if form in (ROWS, INVARIANT):
        table = _once(model, scale_name(str(values.name)), scales)
        yield (row := ir.node("Gather", [values, tokens], attributes={"axis": 0}))
        yield (scale := ir.node("Gather", [table, tokens], attributes={"axis": 0}))
        yield ir.node("DequantizeLinear", [row.outputs[0], scale.outputs[0]], attributes={"axis": 0})
        return
    bits, block = read_blocks(form)
    name = lookup_name(str(values.name))
    lookup = _once(model, name, scales[..., None])  # the same bytes as the scales of a product
    attributes = {"gather_axis": 0, "quantize_axis": 2, "block_size": block, "bits": bits}
    yield (rows := ir.node("GatherBlockQuantized", [values, tokens, lookup], attributes=attributes, domain=MICROSOFT))
    joined = add_initializer(model, f"{name}.shape", np.array([0, -1]))
    yield ir.node("Reshape", [rows.outputs[0], joined])
