"""Each ONNX form computes what PyTorch's function does, for every length, in the dtype that PyTorch has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.exporters.tracing.test_trace import graph, run
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.trace import trace
from txport.models.parts.experts import by_expert
from txport.targets.ports import Port

Function = Callable[[Any, "Weights"], Any]


class Weights(nn.Module):
    """A function of an input (1, S, 6) and of tensors of the module."""

    def __init__(self, function: Function | None = None) -> None:
        super().__init__()
        self.function = function
        rng = torch.Generator().manual_seed(0)
        self.vector = nn.Parameter(torch.randn(6, generator=rng))
        self.matrix = nn.Parameter(torch.randn(6, 6, generator=rng))
        self.register_buffer("numbers", torch.tensor([3, 1, 4, 1, 5, 2]))
        self.register_buffer("table", torch.randn(40, 6, generator=rng))
        self.register_buffer("kernel", torch.randn(4, 6, 3, generator=rng))

    numbers: Tensor
    table: Tensor
    kernel: Tensor

    def forward(self, x: Tensor, y: Tensor) -> Any:
        assert self.function is not None
        return self.function(x, self)


def whole(x: Any) -> Any:
    """Whole numbers of both signs."""
    return (x * 10).long()


def halves(x: Tensor) -> Tensor:
    """How many first numbers of the rows of an input are below 0, and how many are not."""
    return F.one_hot((x[0, :, 0] >= 0).long(), 2).sum(0)


FUNCTIONS: dict[str, Function] = {
    "T": lambda x, w: x @ w.matrix.T,
    "abs": lambda x, w: abs(x),
    "add": lambda x, w: torch.add(x, w.vector),
    "all": lambda x, w: (x > -1).all(1),
    "amax": lambda x, w: x.amax((1, 2)),
    "amin": lambda x, w: x.amin(-1, keepdim=True),
    "and": lambda x, w: (x > 0) & (x < 1),
    "any": lambda x, w: (x > 1).any(-1),
    "arange": lambda x, w: torch.arange(1, x.shape[1] + 1),
    "argmax": lambda x, w: x.argmax(1),
    "argsort": lambda x, w: torch.argsort(x, -1) * x,
    "argmin": lambda x, w: x.argmin(-1, keepdim=True),
    "bitwise_not": lambda x, w: torch.bitwise_not(x > 0),
    "bmm": lambda x, w: torch.bmm(x, x.transpose(1, 2)),
    "bool": lambda x, w: whole(x).bool(),
    "cat": lambda x, w: torch.cat([x, w.table[: x.shape[1]] * x], -1),
    "ceil": lambda x, w: x.ceil(),
    "chunk": lambda x, w: x.chunk(2, -1)[1],
    "clamp": lambda x, w: x.clamp(min=0.1),
    "clip": lambda x, w: torch.clip(x, -0.5, 0.5),
    "clone": lambda x, w: x.clone() + 1,
    "concat": lambda x, w: torch.concat([x, x], 1),
    "contiguous": lambda x, w: x.transpose(1, 2).contiguous(),
    "conv1d": lambda x, w: F.conv1d(x.transpose(1, 2), w.kernel, padding=1),
    "cos": lambda x, w: x.cos(),
    "by_expert": lambda x, w: torch.cat([each * at for at, each in enumerate(by_expert(x[0], halves(x)))]),
    "cumsum": lambda x, w: x.cumsum(1),
    "detach": lambda x, w: x.detach() * 2,
    "div": lambda x, w: torch.div(whole(x), 4),
    "double": lambda x, w: x.double(),
    "dropout": lambda x, w: F.dropout(x, training=False) + 1,
    "einsum": lambda x, w: torch.einsum("bsd,ed->bse", x, w.matrix),
    "elu": lambda x, w: F.elu(x, 0.7),
    "embedding": lambda x, w: F.embedding(whole(x).abs() % 40, w.table),
    "eq": lambda x, w: whole(x) == 3,
    "erf": lambda x, w: torch.erf(x),
    "exp": lambda x, w: x.exp(),
    "expand": lambda x, w: x.unsqueeze(1).expand(-1, 3, x.shape[1], 6),
    "expand_as": lambda x, w: w.vector.expand_as(x),
    "flatten": lambda x, w: x.flatten(1),
    "float": lambda x, w: (x > 0).float(),
    "floor": lambda x, w: x.floor(),
    "floor_divide": lambda x, w: torch.floor_divide(x, 0.3),
    "floordiv": lambda x, w: whole(x) // -3,
    "full": lambda x, w: torch.full((2, x.shape[1]), 0.5),
    "full_like": lambda x, w: torch.full_like(x, 3),
    "gather": lambda x, w: x.gather(2, whole(x).abs() % 6),
    "ge": lambda x, w: x >= 0.1,
    "gelu": lambda x, w: F.gelu(x, approximate="tanh"),
    "getitem": lambda x, w: x[..., None, 1::2][:, :-1],
    "glu": lambda x, w: F.glu(x, -1),
    "gt": lambda x, w: x > w.vector,
    "index_select": lambda x, w: torch.index_select(w.table, 0, torch.arange(x.shape[1])),
    "int": lambda x, w: (x * 10).int(),
    "invert": lambda x, w: ~(x > 0),
    "isinf": lambda x, w: (1 / (x * (x > 0))).isinf(),
    "isnan": lambda x, w: x.log().isnan(),
    "layer_norm": lambda x, w: F.layer_norm(x, (6,)),
    "le": lambda x, w: x <= 0.1,
    "leaky_relu": lambda x, w: F.leaky_relu(x, 0.2),
    "linear": lambda x, w: F.linear(x, w.matrix * 2, w.vector + 1),
    "log": lambda x, w: x.abs().log(),
    "log1p": lambda x, w: x.abs().log1p(),
    "log2": lambda x, w: x.abs().log2(),
    "log_softmax": lambda x, w: x.log_softmax(1),
    "logical_and": lambda x, w: torch.logical_and(x > 0, x < 1),
    "logical_not": lambda x, w: torch.logical_not(x > 0),
    "logical_or": lambda x, w: torch.logical_or(x > 1, x < 0),
    "log_sigmoid": lambda x, w: F.logsigmoid(x),
    "logsumexp": lambda x, w: x.logsumexp(-1),
    "long": lambda x, w: (x * 10).long(),
    "lt": lambda x, w: x < 0.1,
    "masked_fill": lambda x, w: x.masked_fill(x > 0, -math.inf),
    "matmul": lambda x, w: x @ w.matrix,
    "max": lambda x, w: x.max(-1).values + x.max(-1).indices + x.max(),
    "maximum": lambda x, w: torch.maximum(x, w.vector),
    "mean": lambda x, w: x.mean(),
    "min": lambda x, w: x.min(1, keepdim=True)[0] + torch.min(x, w.vector),
    "minimum": lambda x, w: torch.minimum(x, w.vector),
    "mish": lambda x, w: F.mish(x),
    "mm": lambda x, w: torch.mm(x[0], w.matrix),
    "mod": lambda x, w: whole(x) % 7,
    "movedim": lambda x, w: x.movedim(-1, 0),
    "mT": lambda x, w: x.mT,
    "mul": lambda x, w: torch.mul(x, w.vector),
    "mv": lambda x, w: torch.mv(x[0], w.vector),
    "ne": lambda x, w: whole(x) != 3,
    "neg": lambda x, w: -x,
    "new_full": lambda x, w: x.new_full((x.shape[1], 2), 3),
    "new_ones": lambda x, w: x.new_ones(x.shape[1], 2),
    "new_zeros": lambda x, w: x.new_zeros((2, x.shape[1])),
    "norm": lambda x, w: x.norm(dim=-1, keepdim=True),
    "normalize": lambda x, w: F.normalize(x, dim=-1),
    "numel": lambda x, w: x + x[0, 0].numel(),
    "one_hot": lambda x, w: F.one_hot(whole(x).abs() % 5, 5),
    "ones": lambda x, w: torch.ones(x.shape[1], 3),
    "ones_like": lambda x, w: torch.ones_like(x),
    "or": lambda x, w: (x > 1) | (x < 0),
    "pad": lambda x, w: F.pad(x, (0, 0, 2, 1), value=0.5),
    "permute": lambda x, w: x.permute(2, 0, 1),
    "pow": lambda x, w: x**2,
    "reciprocal": lambda x, w: (x + 3).reciprocal(),
    "relu": lambda x, w: F.relu(x),
    "relu6": lambda x, w: F.relu6(10 * x),
    "remainder": lambda x, w: torch.remainder(x, -0.3),
    "repeat": lambda x, w: w.vector.repeat(2, x.shape[1], 1),
    "repeat_interleave": lambda x, w: x.repeat_interleave(2, 1),
    "reshape": lambda x, w: x.reshape(x.shape[0], x.shape[1], 2, 3),
    "rms_norm": lambda x, w: F.rms_norm(x, (6,), eps=1e-6),
    "round": lambda x, w: (x * 10).round(),
    "rsqrt": lambda x, w: x.abs().rsqrt(),
    "scaled_dot_product_attention": lambda x, w: F.scaled_dot_product_attention(x, x, x @ w.matrix, x @ x.mT < 1),
    "sigmoid": lambda x, w: torch.sigmoid(x),
    "sign": lambda x, w: x.sign(),
    "silu": lambda x, w: F.silu(x),
    "sin": lambda x, w: x.sin(),
    "size": lambda x, w: x + x.size(-1) + x.size()[1],
    "softmax": lambda x, w: F.softmax(x, -1, dtype=torch.float64),
    "softplus": lambda x, w: F.softplus(x),
    "split": lambda x, w: x.split(3, -1)[1] + x.split([2, 4], -1)[1][..., 1:],
    "sqrt": lambda x, w: x.abs().sqrt(),
    "square": lambda x, w: x.square(),
    "squeeze": lambda x, w: x[:, :, :1].squeeze(-1),
    "stack": lambda x, w: torch.stack([x, x + w.vector], -1),
    "std": lambda x, w: x.std(-1),
    "sub": lambda x, w: torch.sub(x, w.vector),
    "sum": lambda x, w: (x > 0).sum(1),
    "swapaxes": lambda x, w: x.swapaxes(1, 2),
    "t": lambda x, w: x[0].t(),
    "take": lambda x, w: torch.take(w.vector, whole(x).abs() % 6),
    "take_along_dim": lambda x, w: torch.take_along_dim(x, whole(x).abs() % 6, 2),
    "tanh": lambda x, w: x.tanh(),
    "to": lambda x, w: x.to(torch.float64),
    "topk": lambda x, w: torch.topk(x, 2).values * x.topk(2, -1)[1],
    "transpose": lambda x, w: x.transpose(1, 2),
    "tril": lambda x, w: torch.tril(x @ x.mT, -1),
    "triu": lambda x, w: torch.triu(x @ x.mT),
    "truediv": lambda x, w: w.vector / (x + 3),
    "type_as": lambda x, w: w.numbers.type_as(x) * x,
    "unflatten": lambda x, w: x.unflatten(-1, (3, 2)),
    "unsqueeze": lambda x, w: x.unsqueeze(1),
    "var": lambda x, w: x.var(-1, unbiased=False, keepdim=True),
    "vector_norm": lambda x, w: torch.linalg.vector_norm(x, dim=-1),
    "view": lambda x, w: x.view(x.shape[0], -1, 2, 3),
    "where": lambda x, w: torch.where(x > w.vector, x, 0.5),
    "zeros": lambda x, w: torch.zeros(x.shape[1], 2),
    "zeros_like": lambda x, w: torch.zeros_like(x),
}
ALSO = {"linalg_vector_norm"}  # names of functions above


def reflected(name: str) -> bool:
    return name.startswith("r") and f"{name[1:]}" in FORMS and name not in FUNCTIONS


def test_each_form_is_compared() -> None:
    assert {*FUNCTIONS} == {name for name in FORMS if not reflected(name)} - ALSO


def test_the_page_about_architectures_lists_each_function() -> None:
    page = (Path(__file__).parents[3] / "docs" / "architectures.md").read_text(encoding="utf-8")
    table = page.split("| kind | functions |")[1].split("\n\n")[0]
    others = {"and", "floordiv", "getitem", "invert", "mod", "or", "truediv", "by_expert"}  # operators, and our own
    assert {*re.findall(r"`(\w+)`", table)} == {*FUNCTIONS} - others


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_form_computes_what_pytorch_s_function_does(name: str) -> None:
    module = Weights(FUNCTIONS[name])
    port = Port("found", "float32", ())
    session = trace(module, graph(port), 18)
    for size in (2, 5):
        x = np.random.default_rng(size).standard_normal((1, size, 6)).astype(np.float32)
        x[0, 0, 0] = 0.3
        with torch.no_grad():
            expected = module(torch.from_numpy(x), torch.from_numpy(x)).numpy()
        (found,) = run(session, x=x, y=x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x[:, -1],
        lambda x, w: x[:, 0, None],
        lambda x, w: x[0, ..., 2],
        lambda x, w: x[:, :, w.numbers],
        lambda x, w: x[:, x.argmax(1)[0] % 2],
        lambda x, w: w.table[: x.shape[1]] * x,
        lambda x, w: w.table[whole(x).abs() % 40],
        lambda x, w: (1 + w.vector) * x,
        lambda x, w: x * w.matrix.t()[1:2],
        lambda x, w: 7 % (whole(x) * 0 + 4),
        lambda x, w: 7.5 // (x * 0 + 2),
    ],
)
def test_positions_and_tensors_of_the_module(function: Function) -> None:
    FUNCTIONS["this"] = function
    try:
        test_a_form_computes_what_pytorch_s_function_does("this")
    finally:
        del FUNCTIONS["this"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x.split(4, -1)[0],
        lambda x, w: x.split(4, -1)[1],
        lambda x, w: nn.Softplus()(x),
        lambda x, w: torch.full((2, 2), x.shape[1]),
        lambda x, w: torch.full((2, 2), x.shape[1], dtype=torch.float32),
        lambda x, w: torch.full_like(x, x.shape[1] + 1),
        lambda x, w: x.masked_fill(x > 0, x.shape[1]),
        lambda x, w: whole(x).masked_fill(x > 0, x.shape[1]),
        lambda x, w: torch.where(x > 0, x < 1, w.vector > 0),
        lambda x, w: torch.where(x > 0, x < 1, True),
        lambda x, w: (x > 0).masked_fill(x > 1, False),
    ],
)
def test_remainders_lengths_and_masks(function: Function) -> None:
    test_positions_and_tensors_of_the_module(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.scaled_dot_product_attention(query=x, key=x, value=x @ w.matrix),
        lambda x, w: torch.cat(tensors=[x, x], dim=1),
        lambda x, w: F.linear(input=x, weight=w.matrix, bias=w.vector),
        lambda x, w: F.embedding(input=whole(x).abs() % 40, weight=w.table),
        lambda x, w: torch.sum(input=x, dim=1),
        lambda x, w: F.linear(input=w.vector, weight=w.matrix) + x,
    ],
)
def test_arguments_by_pytorch_s_names(function: Function) -> None:
    test_positions_and_tensors_of_the_module(function)
