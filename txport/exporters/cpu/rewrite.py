"""Operators of quantised matrices on the CPU, for each storage form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from txport.bundles.forms import DYNAMIC, Stored
from txport.exporters.fused.packs import MICROSOFT, weight_of
from txport.exporters.fused.quantize import spread_of
from txport.exporters.fused.rewrite import Matrix, Quantising, in_blocks, looked_up, once

MIDDLE, TINY = 128, 1e-30  # zero point in 8 bits; smallest divisor, for rows of zeros


def _linear(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield the nodes of x @ weight.T + bias for the form of the weight."""
    form = stored.form
    assert form is not None
    x = node.inputs[0]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if form.kind == "blocks":
        yield in_blocks(model, x, values, stored, matrix, bias, accuracy_level=4)
        return
    scale = once(model, str(stored.scales), matrix.scales)
    if form == DYNAMIC:
        yield ir.node("DynamicQuantizeMatMul", [x, values, scale, None, bias], domain=MICROSOFT)
        return
    zeros = once(model, stored.zeros, np.zeros(matrix.scales.shape.numpy(), np.int8))
    if form.columns:
        yield from _beside_columns(model, x, [values, scale, zeros], stored, matrix, bias)
        return
    product = _each_row if form.kind == "invariant" else _all_rows
    made = product(model, x, [values, scale, zeros])
    yield from made
    if bias is not None:
        yield ir.node("Add", [made[-1].outputs[0], bias])


def _all_rows(_: ir.Model, x: ir.Value | None, weight: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the nodes of x @ weight.T; activations are quantised with one scale for all rows."""
    ready = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    return [ready, ir.node("QGemm", [*ready.outputs, *weight], attributes={"transB": 1}, domain=MICROSOFT)]


def _each_row(model: ir.Model, x: ir.Value | None, weight: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the nodes of x @ weight.T; each row of activations is divided by its maximum, then quantised."""
    axes, tiny, step, middle = (
        once(model, f"row.{name}", np.array(value, dtype))
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


def _beside_columns(
    model: ir.Model,
    x: ir.Value | None,
    weight: Sequence[ir.Value],
    stored: Stored,
    matrix: Matrix,
    bias: ir.Value | None,
) -> list[ir.Node]:
    """Return the nodes of x @ weight.T + bias; some columns of x are multiplied in fp32.

    The others are quantised to 0 to 255, each row with its own scale and zero point. The product in fp32 has two more
    inputs: the zero point, whose weights are the negative sums of the integers, and 1, whose weights are the bias.
    """
    assert stored.form is not None
    places = np.array(stored.form.columns)
    inputs = matrix.size[1]
    mask = np.ones(inputs, np.float32)
    mask[places] = 0
    columns = once(model, stored.columns, matrix.columns)
    last = once(model, "row.axes", np.array([1]))
    nodes: list[ir.Node] = []

    def add(operator: str, *inputs: ir.Value | None, domain: str = "", **attributes: int) -> ir.Value:
        nodes.append(ir.node(operator, inputs, attributes=attributes, domain=domain))
        return nodes[-1].outputs[0]

    def number(name: str, value: float, dtype: type = np.float32) -> ir.Value:
        return once(model, f"row.{name}", np.array(value, dtype))

    chosen = add("Gather", x, once(model, stored.form.places(inputs), places), axis=1)  # (R, columns)
    others = add("Mul", x, once(model, stored.form.rest(inputs), mask))
    high, low = (add(f"Reduce{end}", others, last, keepdims=0) for end in ("Max", "Min"))  # (R,), around 0
    step = add("Max", add("Mul", add("Sub", high, low), number("part", 1 / 255)), number("tiny", TINY))
    zero = add("QuantizeLinear", add("Neg", low), step, axis=0)
    shift = add("DequantizeLinear", zero, step, axis=0)
    ready = add("QuantizeLinear", others, step, zero, axis=0)
    start = number("start", 0, np.uint8)
    integers = add("QGemm", ready, number("one", 1), start, *weight, domain=MICROSOFT, transB=1)
    scale = add("Unsqueeze", step, last)
    scaled = add("Mul", integers, scale)
    read = [chosen, add("Unsqueeze", shift, last)]
    if bias is not None:
        read.append(add("Div", scale, scale))
        line = add("Unsqueeze", bias, once(model, "row.first", np.array([0])))
        columns = add("Concat", columns, line, axis=0)  # of constants, which sessions fold
    add("Gemm", add("Concat", *read, axis=1), columns, scaled)
    return nodes


def _lookup(model: ir.Model, node: ir.Node, stored: Stored, values: ir.Value, matrix: Matrix) -> Iterator[ir.Node]:
    """Yield nodes that look up rows of an embedding: (R,) -> (R, D)."""
    tokens = node.inputs[1]
    assert stored.form is not None
    if not stored.form.has_row_scales:
        yield from looked_up(model, tokens, values, stored, matrix, 1)
        return
    table = once(model, str(stored.scales), matrix.scales)
    yield (row := ir.node("Gather", [values, tokens], attributes={"axis": 0}))
    yield (scale := ir.node("Gather", [table, tokens], attributes={"axis": 0}))
    yield (rows := ir.node("DequantizeLinear", [row.outputs[0], scale.outputs[0]], attributes={"axis": 0}))
    if stored.form.columns:
        columns = once(model, stored.columns, matrix.columns)
        spread = once(model, stored.spread, spread_of(stored.form, matrix.size[1]))
        yield (chosen := ir.node("Gather", [columns, tokens], attributes={"axis": 1}))  # (columns + 1, R)
        yield ir.node("Gemm", [chosen.outputs[0], spread, rows.outputs[0]], attributes={"transA": 1})


ON_CPU = Quantising(weight_of, _linear, _lookup, ir.DataType.FLOAT)
