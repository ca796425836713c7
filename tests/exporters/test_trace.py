"""A trace writes down what a module does, keeps every dynamic dim open, and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from txport.bundles.ports import BATCH, PAST, PAST_SOURCE, SOURCE, TOKENS, Graph, Port
from txport.errors import UnsupportedError
from txport.exporters.trace import SIZES, trace

Array = NDArray[Any]
X = Port("x", "float32", (BATCH, SOURCE, 6))
Y = Port("y", "float32", (BATCH, PAST_SOURCE, 6))


class Odd(nn.Module):
    """Of each kind of function one or two, over lengths that are sums, differences and products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rest = x[:, y.shape[1] :]  # (B, S - P, 6), nothing where P = S
        joined = torch.cat([y, rest], 1)  # (B, S, 6)
        h = self.norm(self.linear(joined) * 0.5 + 1)
        rows = F.silu(self.linear(joined.flatten(0, 1))).view(x.shape[0], x.shape[1], -1)  # over (B * S, 6)
        places = torch.arange(y.shape[1], y.shape[1] + x.shape[1])
        near = (places[None, :] <= places[:, None]).to(x.dtype)  # (S, S)
        weights = torch.softmax(h @ rows.transpose(1, 2) + near, dim=-1)  # (B, S, S)
        heads = (weights @ rows).unflatten(2, (2, -1)).transpose(1, 2)  # (B, 2, S, 2)
        return F.gelu(heads), rest, h


def graph(*outputs: Port) -> Graph:
    return Graph("encoder", "odd.onnx", (X, Y), outputs)


OUTPUTS = (
    Port("heads", "float32", (BATCH, 2, SOURCE, 2)),
    Port("rest", "float32", (BATCH, "left", 6)),
    Port("h", "float32", (BATCH, SOURCE, 4)),
)


def run(model: ir.Model, **inputs: Array) -> list[Array]:
    found: list[Array] = ort.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, inputs)
    return found


@pytest.fixture(scope="module")
def odd() -> Odd:
    torch.manual_seed(0)
    return Odd().eval()


@pytest.mark.parametrize("opset", [18, 20, 25])
@given(batch=st.integers(1, 3), past=st.integers(0, 4), more=st.integers(0, 3))
def test_a_graph_computes_what_the_module_does_for_every_length(
    opset: int, odd: Odd, traced: dict[int, ir.Model], batch: int, past: int, more: int
) -> None:
    size = max(1, past + more)
    rng = np.random.default_rng(batch)
    x, y = (rng.standard_normal((batch, length, 6)).astype(np.float32) for length in (size, past))
    with torch.no_grad():
        expected = odd(torch.from_numpy(x), torch.from_numpy(y))
    for wanted, found in zip(expected, run(traced[opset], x=x, y=y), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def traced(odd: Odd) -> dict[int, ir.Model]:
    return {opset: trace(odd, graph(*OUTPUTS), opset) for opset in (18, 20, 25)}


def test_weights_have_the_checkpoint_s_names_and_lie_once(traced: dict[int, ir.Model]) -> None:
    assert set(traced[18].graph.initializers) == {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}


def test_a_function_without_a_form_is_refused_by_name() -> None:
    class Summed(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.cumsum(1)

    with pytest.raises(UnsupportedError, match="no ONNX form of PyTorch's cumsum"):
        trace(Summed(), graph(OUTPUTS[2]), 18)


def test_a_choice_by_a_length_is_refused() -> None:
    class Choosing(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + 1 if x.shape[1] > 3 else x

    class Cutting(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x[:, :3]

    for module, words in ((Choosing(), "can't depend on a length by __gt__"), (Cutting(), "slices go to the end")):
        with pytest.raises(UnsupportedError, match=words):
            trace(module, graph(OUTPUTS[2]), 18)


def test_single_places_and_new_dims_are_picked() -> None:
    class Picking(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x[:, 0], x[None, :, 1, None], x[:, -1, 2:]

    dims = (("batch", 6), (1, "batch", 1, 6), ("batch", 4))
    ports = (Port(name, "float32", each) for name, each in zip("abc", dims, strict=True))
    x, y = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32), np.ones((2, 2, 6), np.float32)
    found = run(trace(Picking(), graph(*ports), 18), x=x, y=y)
    for wanted, each in zip((x[:, 0], x[None, :, 1, None], x[:, -1, 2:]), found, strict=True):
        np.testing.assert_array_equal(each, wanted)


def test_an_output_that_is_an_input_or_another_output_has_a_name_of_its_own() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            twice = y + y
            return x, twice, twice

    ports = (Port("a", "float32", X.dims), Port("b", "float32", Y.dims), Port("c", "float32", Y.dims))
    x, y = np.ones((1, 3, 6), np.float32), np.ones((1, 2, 6), np.float32)
    found = run(trace(Same(), graph(*ports), 18), x=x, y=y)
    for wanted, each in zip((x, 2 * y, 2 * y), found, strict=True):
        np.testing.assert_array_equal(each, wanted)


def test_the_example_lengths_are_told_apart() -> None:
    """No two dims, sums or differences of dims have the same two lengths."""
    pairs = [sizes for dim, sizes in SIZES.items() if dim != f"{PAST} + {TOKENS}"]  # a sum already
    sums = [(a + c, b + d) for at, (a, b) in enumerate(pairs) for c, d in pairs[at:]]
    differences = [(a - c, b - d) for a, b in pairs for c, d in pairs if (a, b) != (c, d)]
    every = [*pairs, *sums, *differences]
    assert len(set(every)) == len(every)
    assert all(one != other for one, other in every)
