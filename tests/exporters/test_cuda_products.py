"""Products of the cuda target repeat no matrices, and give what PyTorch gives."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from txport.bundles.ports import BATCH, SOURCE, TARGET, Graph, Port
from txport.errors import UnsupportedError
from txport.exporters.cuda.audit.capture import dims_of, unfit
from txport.exporters.cuda.audit.values import operator_of
from txport.exporters.cuda.operators import CUDA_FORMS
from txport.exporters.forms import FORMS
from txport.exporters.symbols import Form
from txport.exporters.trace import trace

Dims = tuple[int | str, ...]
HEADS, SIZE = 4, 8
LENGTHS = {BATCH: 3, SOURCE: 5, TARGET: 2}
CASES: dict[str, tuple[Dims, Dims]] = {
    "vectors of keys, those of all rows": ((SOURCE, SOURCE, SIZE), (BATCH, HEADS, SOURCE, SIZE, 1)),
    "vectors of keys, of each row": ((BATCH, 1, 1, SOURCE, SIZE), (BATCH, HEADS, 1, SIZE, 1)),
    "vectors of values, those of all rows": ((BATCH, HEADS, SOURCE, 1, SOURCE), (SOURCE, SOURCE, SIZE)),
    "vectors of values, of each row": ((BATCH, HEADS, 1, 1, SOURCE), (BATCH, 1, 1, SOURCE, SIZE)),
    "heads that share keys": ((BATCH, 2, 3, TARGET, SIZE), (BATCH, 2, 1, SIZE, SOURCE)),
    "heads that share queries": ((BATCH, 2, 1, TARGET, SIZE), (BATCH, 2, 3, SIZE, SOURCE)),
}


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


def product(x: Dims, y: Dims, forms: dict[str, Form]) -> ir.Model:
    found: Dims = tuple(f"d{number}" for number in range(max(len(x), len(y))))
    inputs = (Port("x", "float32", x), Port("y", "float32", y))
    model = trace(Product(), Graph("g", "g.onnx", inputs, (Port("z", "float32", found),)), 24, forms)
    model.graph.outputs[0].shape = ir.Shape(found)
    return model


def faults(model: ir.Model) -> list[str]:
    content = ir.to_proto(model)
    dims = dims_of(content)
    return [reason for node in content.graph.node if (reason := unfit(node, operator_of(node), dims))]


@pytest.mark.parametrize("case", CASES)
def test_no_product_repeats_matrices(case: str) -> None:
    shapes = CASES[case]
    assert faults(product(*shapes, FORMS)), "as PyTorch has it"
    model = product(*shapes, CUDA_FORMS)
    assert not faults(model)
    rng = np.random.default_rng(0)
    x, y = (
        rng.standard_normal([LENGTHS.get(str(dim), dim) for dim in dims]).astype(np.float32)  # type: ignore[arg-type]
        for dims in shapes
    )
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"x": x, "y": y})
    np.testing.assert_allclose(found, torch.from_numpy(x) @ torch.from_numpy(y), rtol=1e-5, atol=1e-5)


def test_what_both_sides_repeat_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a product that repeats matrices of both sides"):
        product((BATCH, 1, TARGET, SIZE), (1, HEADS, SIZE, SOURCE), CUDA_FORMS)
