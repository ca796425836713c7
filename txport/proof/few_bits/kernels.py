"""Whether the kernels of this processor round activations as `activations` describes."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from txport.bundles.forms import Form
from txport.exporters.cpu.rewrite import ON_CPU
from txport.exporters.fused.quantize import dequantize, quantize
from txport.exporters.fused.rewrite import add_initializer, apply_forms
from txport.exporters.portable.quantize import QDQ_OPSET, STANDARD
from txport.proof.bisect.isolation import Runner
from txport.proof.few_bits.activations import round_activations
from txport.runtimes.ort.onnx_runtime import ort

ROWS, INPUTS, OUTPUTS = (1, 2, 5), 256, 48
SAME = 1e-5  # largest difference of a product whose activations are rounded as described, relative to its largest value
AS_SHIPPED = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def is_reproduced(form: Form) -> bool:
    """Return whether products of this form have the described roundings on this processor, whichever their columns."""
    return try_kernel(dataclasses.replace(form, columns=tuple(range(len(form.columns)))))


@cache
def try_kernel(form: Form) -> bool:
    """Return whether a small product of one, a few and many rows has the described roundings on this processor."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
    runner = Runner(product_of(weight, form), Path(), AS_SHIPPED)
    held = torch.from_numpy(dequantize(quantize(weight, form))).double()
    for rows in ROWS:
        x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
        expected = (round_activations(torch.from_numpy(x), form) @ held.T).numpy()
        difference = np.abs(runner.run({"x": x})["y"] - expected).max()
        if not difference <= SAME * np.abs(expected).max():
            return False
    return True


def product_of(weight: np.ndarray, form: Form) -> ir.Model:
    """Return a graph with one product x @ weight.T whose weight has this form: x (R, in) -> y (R, out)."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", type=kind, shape=ir.Shape(["R", weight.shape[1]]))
    is_qdq = form.kind == "qdq"
    nodes = [ir.node("Transpose", [None], attributes={"perm": [1, 0]}), ir.node("MatMul", [x, None])]
    nodes[1].replace_input_with(1, nodes[0].outputs[0])
    if not is_qdq:
        nodes = [ir.node("Gemm", [x, None], attributes={"transB": 1})]
    y = nodes[-1].outputs[0]
    y.name, y.type, y.shape = "y", kind, ir.Shape(["R", len(weight)])
    graph = ir.Graph([x], [y], nodes=nodes, opset_imports={"": QDQ_OPSET}, name="product")
    model = ir.Model(graph, ir_version=10)
    nodes[0].replace_input_with(0 if is_qdq else 1, add_initializer(model, "weight", weight))
    apply_forms(model, {"weight": form}, (), {}, STANDARD if is_qdq else ON_CPU)
    return model
