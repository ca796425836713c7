"""Products of the cuda target repeat no matrices, and give what PyTorch gives."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from txport.errors import UnsupportedError
from txport.exporters.cuda.audit.capture import dims_of, unfit
from txport.exporters.cuda.audit.values import operator_of
from txport.exporters.cuda.operators import CUDA_FORMS
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.symbols import Form
from txport.exporters.tracing.trace import trace
from txport.targets.ports import BATCH, SOURCE, TARGET, Graph, Port

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
    assert_right(model, *shapes)


def assert_right(model: ir.Model, *shapes: Dims) -> None:
    rng = np.random.default_rng(0)
    x, y = (
        rng.standard_normal([LENGTHS.get(str(dim), dim) for dim in dims]).astype(np.float32)  # type: ignore[arg-type]
        for dims in shapes
    )
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"x": x, "y": y})
    np.testing.assert_allclose(found, torch.from_numpy(x) @ torch.from_numpy(y), rtol=1e-5, atol=1e-5)


@st.composite
def sides(draw: st.DrawFn) -> tuple[Dims, Dims]:
    """Shapes of two sides, each without some dims of the batch, of length 1 in some; or one of them a vector."""
    batch = draw(st.permutations([BATCH, HEADS, 3]))[: draw(st.integers(0, 3))]
    matrices: tuple[Dims, Dims] = (
        (draw(st.sampled_from([TARGET, 1, 7])), SIZE),
        (SIZE, draw(st.sampled_from([SOURCE, 1, 6]))),
    )
    vector = draw(st.sampled_from([None, None, None, 0, 1]))
    found = list[Dims]()
    for side, matrix in enumerate(matrices):
        dims = tuple(draw(st.sampled_from([dim, 1])) for dim in batch)
        found.append((SIZE,) if vector == side else (*dims[draw(st.integers(0, len(batch))) :], *matrix))
    return found[0], found[1]


@settings(max_examples=100, deadline=None)
@given(shapes=sides())
@example(shapes=((BATCH, HEADS, TARGET, SIZE), (SIZE, SOURCE)))
@example(shapes=((BATCH, TARGET, SIZE), (1, SIZE, SOURCE)))
@example(shapes=((1, 1, TARGET, SIZE), (BATCH, SIZE, 6)))
@example(shapes=((BATCH, 2, SIZE), (1, 1, SIZE, SOURCE)))
@example(shapes=((SIZE,), (HEADS, SIZE, SOURCE)))
@example(shapes=((BATCH, TARGET, SIZE), (SIZE,)))
def test_a_product_of_any_dims_is_right_or_refused(shapes: tuple[Dims, Dims]) -> None:
    """And is not refused where a plain product would do."""
    plain = product(*shapes, FORMS)
    if faults(plain):
        with suppress(UnsupportedError):
            assert_right(model := product(*shapes, CUDA_FORMS), *shapes)
            assert not faults(model)
        return
    model = product(*shapes, CUDA_FORMS)
    assert not faults(model)
    assert_right(model, *shapes)
    assert [node.op_type for node in model.graph] == ["MatMul"]


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (((BATCH, 1, TARGET, SIZE), (1, HEADS, SIZE, SOURCE)), "a product that repeats matrices of both sides"),
        (((SIZE,), (BATCH, SIZE, SOURCE)), "a product of a vector with matrices"),
        (((BATCH, TARGET, SIZE), (SIZE,)), "a product of a vector with matrices"),
        (((1, TARGET, SIZE), (BATCH, SIZE, SOURCE)), "matrices along two dims that a run decides"),
    ],
)
def test_what_has_no_form_is_refused(shapes: tuple[Dims, Dims], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        product(*shapes, CUDA_FORMS)
