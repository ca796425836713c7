"""A trace writes down what a module does, keeps every dynamic dim open, and refuses what it does not know."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tiny import unproven
from txport.errors import UnsupportedError
from txport.exporters.tracing.trace import SIZES, GraphModule, trace, weight_names
from txport.targets.ports import BATCH, BEAMS, PAST, PAST_SOURCE, SOURCE, TOKENS, Graph, Port

Array = NDArray[Any]
X = Port("x", "float32", (BATCH, SOURCE, 6))
Y = Port("y", "float32", (BATCH, PAST_SOURCE, 6))


class Odd(nn.Module):
    """Of each kind of function one or two, over lengths that are sums, differences and products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)

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


@given(batch=st.integers(1, 3), past=st.integers(1, 4), more=st.integers(1, 3))
def test_dims_of_one_name_have_one_length(odd: Odd, batch: int, past: int, more: int) -> None:
    """ONNX Runtime gives a value the memory of another one whose dims have the same names."""
    model = trace(odd, graph(*OUTPUTS), 20)
    values = [value for node in model.graph for value in node.outputs if value.shape is not None]
    model.graph.outputs.extend(value for value in values if value not in model.graph.outputs)
    x, y = (np.ones((batch, length, 6), np.float32) for length in (past + more, past))
    found = dict(zip(model.graph.outputs, run(model, x=x, y=y), strict=True))
    lengths: dict[object, set[int]] = {}
    for value in values:
        assert value.shape is not None
        for dim, length in zip(value.shape, found[value].shape, strict=True):
            assert dim is not None
            lengths.setdefault(dim if isinstance(dim, int) else dim.value, set()).add(length)
    assert {name: each for name, each in lengths.items() if len(each) > 1} == {}
    assert lengths[BATCH] == {batch}
    assert {past + more, more, batch * (past + more)} <= set.union(*lengths.values())


@pytest.mark.parametrize(("target", "others"), [("cpu", True), ("portable", False)])
def test_files_keep_names_of_dims(target: str, others: bool, tmp_path: Path) -> None:
    """Of a portable graph, those of its ports."""
    bundle = unproven("preset:gpt2-tiny", tmp_path / "out", target=target)
    graph = onnx.load(bundle.file("step" if target == "cpu" else "decoder")).graph
    ports, inside = (
        {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim if not dim.dim_value}
        for values in ([*graph.input, *graph.output], graph.value_info)
    )
    assert inside & ports
    assert bool(inside - ports) == others
    assert "" not in inside


def test_weights_have_the_checkpoint_s_names_and_lie_once(traced: dict[int, ir.Model]) -> None:
    assert set(traced[18].graph.initializers) == {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}


def test_an_attribute_model_of_a_model_is_part_of_the_names_of_its_weights() -> None:
    """A graph module holds the model in such an attribute, too, and its names are those of the model."""
    model: Any = nn.Module()
    model.model = nn.Linear(2, 2)
    names = ["model.weight", "model.bias"]
    assert [*weight_names(model).values()] == [*weight_names(GraphModule(model)).values()] == names


def test_a_function_without_a_form_is_refused_by_name() -> None:
    class Summed(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.cumprod(1)

    with pytest.raises(UnsupportedError, match="no ONNX form of PyTorch's cumprod"):
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
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)
    y = np.ones((2, 2, 6), np.float32)
    found = run(trace(Picking(), graph(*ports), 18), x=x, y=y)
    for wanted, each in zip((x[:, 0], x[None, :, 1, None], x[:, -1, 2:]), found, strict=True):
        np.testing.assert_array_equal(each, wanted)


def test_an_output_that_is_an_input_or_another_output_has_a_name_of_its_own() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            twice = y + y
            return x, twice, twice

    ports = (Port("a", "float32", X.dims), Port("b", "float32", Y.dims), Port("c", "float32", Y.dims))
    x = np.ones((1, 3, 6), np.float32)
    y = np.ones((1, 2, 6), np.float32)
    found = run(trace(Same(), graph(*ports), 18), x=x, y=y)
    for wanted, each in zip((x, 2 * y, 2 * y), found, strict=True):
        np.testing.assert_array_equal(each, wanted)


def test_the_example_lengths_are_told_apart() -> None:
    """No two dims, sums, differences or products of dims have the same two lengths, and none has one length twice."""
    total = f"{PAST} + {TOKENS}"
    known = {("add", TOKENS, PAST), ("mul", BATCH, BEAMS), ("sub", total, PAST), ("sub", total, TOKENS)}  # dims already
    found = list(SIZES.values())
    for how, pairs in (
        (operator.add, combinations_with_replacement(SIZES, 2)),
        (operator.sub, permutations(SIZES, 2)),
        (operator.mul, combinations_with_replacement(SIZES, 2)),
    ):
        for a, b in pairs:
            if (how.__name__, a, b) not in known:
                found.append((how(SIZES[a][0], SIZES[b][0]), how(SIZES[a][1], SIZES[b][1])))
    assert len(set(found)) == len(found)
    assert all(one != other for one, other in found)


class By(nn.Module):
    """What one function makes of the first input."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.shape[1],
        lambda x: x * x.shape[1],
        lambda x: x.shape[1] * x,
        lambda x: x.shape[1] - x,
        lambda x: x + x.shape[1],
        lambda x: x.clamp(0.5, x.shape[1]),
        lambda x: x.shape[1] / (x * x + 1),
        lambda x: torch.arange(x.shape[1]) / x.shape[1],
        lambda x: 1 - x,
        lambda x: -x,
        lambda x: 2**x,
        lambda x: x**2,
        lambda x: 1 / (x * x + 1),
        lambda x: x * (x == 0),
        lambda x: x * (x != 0),
        lambda x: x * (x > 0),
        lambda x: x * ((x >= 0.5) | (x < 0)),
        lambda x: x.shape[1] > x,
        lambda x: x[:, x.shape[1] - 1 :],
    ],
)
def test_lengths_and_numbers_meet_tensors_as_in_pytorch(function: Callable[[Any], Any]) -> None:
    port = Port("found", "float32", ())
    for size in (2, 5):
        x = np.random.default_rng(size).standard_normal((1, size, 6)).astype(np.float32)
        x[0, 0, 0] = 0
        expected = function(torch.from_numpy(x)).numpy()
        (found,) = run(trace(By(function), graph(port), 18), x=x, y=x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x * (1 / x.shape[1]), "on a length by __rtruediv__"),
        (lambda x: x * x.shape[1] ** 0.5, "on a length by __pow__"),
        (lambda x: x * 2 ** x.shape[1], "on a length by __rpow__"),
        (lambda x: x * (7 // x.shape[1]), "on a length by __rfloordiv__"),
        (lambda x: x * (7 % x.shape[1]), "on a length by __rmod__"),
        (lambda x: x * math.sqrt(x.shape[1]), "on a length by __float__"),
        (lambda x: x * int(x.shape[1]), "on a length by __int__"),
        (lambda x: x * abs(x.shape[1]), "on a length by __abs__"),
        (lambda x: x * (x.shape[1] + 0.5), "adds and subtracts whole numbers to lengths, got 0.5"),
        (lambda x: x + 1 if x else x, "by __bool__ on what a tensor holds"),
        (lambda x: list(x), "by __iter__ on what a tensor holds"),
        (lambda x: x * float(x), "by __float__ on what a tensor holds"),
        (lambda x: x.add_(1), "no ONNX form of PyTorch's add_: docs/architectures.md"),
        (lambda x: torch.add(x, x, alpha=2), "form of PyTorch's add has got an unexpected keyword argument 'alpha'"),
        (lambda x: x[:, : x.shape[1], 0][x[:, :, 0] > 0], "an index by a mask, whose result has any length"),
        (lambda x: x[:, :3], "of a length that a run decides: slices go to the end"),
        (lambda x: x.var(1), "a variance over a dim whose length a run decides"),
        (lambda x: x.split(3, 1)[0], "a split of a dim that a run decides"),
        (lambda x: F.softplus(x, 2.0), "softplus with beta 2.0 and threshold 20.0"),
        (lambda x: torch.where(condition=x > 0, input=x, other=x), "form of PyTorch's where has"),
        (lambda x: x | 1, "'or' of anything but masks"),
        (lambda x: F.embedding(x.long(), torch.ones(3, 2), max_norm=1.0), "an embedding with max_norm"),
        (lambda x: F.embedding(x.long(), torch.ones(3, 2), sparse=True), "scale_grad_by_freq or sparse"),
    ],
)
def test_what_would_freeze_or_is_unknown_is_refused_by_name(function: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        trace(By(function), graph(Port("found", "float32", ())), 18)


def test_a_symbol_is_a_key() -> None:
    found = trace(By(lambda x: {x: x + 1}[x]), graph(Port("found", "float32", ())), 18)
    assert len(found.graph.outputs) == 1
