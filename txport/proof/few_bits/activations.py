"""Rounding of activations, as ONNX Runtime's kernels round them before a product with weights in few bits.

| form of the weights | operator | numbers | one scale for |
|---|---|---|---|
| invariant | QuantizeLinear, QGemm | -128 to 127 | each row |
| dynamic, rows | DynamicQuantizeMatMul; DynamicQuantizeLinear, QGemm | 0 to 255 and a zero point | all rows |
| columns | QuantizeLinear, QGemm; some columns in fp32 | 0 to 255 and a zero point | each row |
| blocks | MatMulNBits, accuracy level 4 | -127 to 127 | each row and block of inputs |
| qdq | DequantizeLinear and MatMul, which ONNX Runtime makes a MatMulNBits | as blocks | as blocks |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txport.bundles.forms import PLAIN, Form

TINY = 1e-30  # smallest divisor of a row, for rows of zeros
FLOAT = torch.float32
EDGE = 1e-4  # steps from the middle of two steps, within which kernels may round either way
CANCELLED = 4 * torch.finfo(FLOAT).eps  # of the sum of a block with its zero point
ROUNDER = "rounder"  # the attribute of a model whose activations are rounded
Round = Callable[[Tensor], Tensor]


class Grid(NamedTuple):
    """The values (..., blocks, block) that a kernel rounds to integers, in steps, and the size of a step."""

    values: Tensor
    step: Tensor
    least: float
    most: float
    zero: float | Tensor = 0.0

    def rounded(self, how: Round) -> Tensor:
        """Return the numbers that the kernel multiplies, in float64."""
        whole = (how(self.values) + self.zero).clamp(self.least, self.most) - self.zero
        return whole.double() * self.step.double()


def grid_of(x: Tensor, form: Form) -> Grid:
    """Return the grid of activations (..., in); each number is computed in float32, as the kernel does."""
    x = x.to(FLOAT)
    if form.block is not None:
        blocks = x.reshape(*x.shape[:-1], -1, form.block)
        largest = blocks.abs().amax(-1, keepdim=True)
        return Grid(blocks * torch.where(largest > 0, 127 / largest, 0), largest / 127, -127, 127)
    if form.kind == "invariant":
        largest = x.abs().amax(-1, keepdim=True).clamp(min=TINY)
        step = torch.tensor(1 / 127, dtype=FLOAT)
        return Grid(x / largest / step, largest.double() * step.double(), -128, 127)
    if form.kind == "columns":
        x = rest_of(x, form)
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        step = ((high - low) * torch.tensor(1 / 255, dtype=FLOAT)).clamp(min=TINY)
        return Grid(x / step, step, 0, 255, (-low / step).round())
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    step = torch.where(high > low, (high - low) / 255, 1)
    return Grid(x / step, step, 0, 255, float((-low / step).clamp(0, 255).round()))


def round_activations(x: Tensor, form: Form, how: Round = torch.round) -> Tensor:
    """Return activations (..., in) as the kernel of a form multiplies them, in float64; `how` rounds to integers."""
    if not x.numel():
        return x
    rounded = grid_of(x, form).rounded(how).reshape(x.shape)
    return rounded + (x - rest_of(x, form)).double() if form.columns else rounded


def rest_of(x: Tensor, form: Form) -> Tensor:
    """Return activations (..., in) whose columns in fp32 are 0."""
    return x.index_fill(-1, torch.tensor(form.columns, dtype=torch.long), 0)


def ties(x: Tensor, form: Form) -> Tensor:
    """Return, for activations (..., in), the size of a step where a kernel may round either way, otherwise 0."""
    grid = grid_of(x, form)
    is_near = _is_near_tie(grid.values)
    if form.columns:  # with another zero point, the ends of a row are clipped to other numbers
        low = grid.values.amin(-1, keepdim=True)
        is_near |= _is_near_tie(low)
    return torch.where(is_near, grid.step.double(), 0.0).reshape(x.shape)


def _is_near_tie(values: Tensor) -> Tensor:
    return (values - values.floor() - 0.5).abs() < EDGE


def slack(x: Tensor, weight: Tensor, form: Form) -> Tensor:
    """Return the largest differences (rows, out) of a product that a correct kernel may have beside the error of fp32.

    x (rows, in), weight (out, in). They come from ties, and from the zero point: the kernel subtracts what it adds to
    all numbers of a block or row, in float32, so that much larger sums than the product cancel.
    """
    weight = weight.double()
    found = ties(x, form) @ weight.abs().T
    if form.columns:
        grid = grid_of(x, form)
        found += CANCELLED * (grid.zero * grid.step.double()) * rest_of(weight, form).sum(-1).abs()
    if form.block is not None:
        shape = (len(weight), -1, form.block)
        sums = x.double().abs().reshape(len(x), *shape[1:]).sum(-1)
        found += CANCELLED * sums @ weight.abs().reshape(shape).amax(-1).T
    return found


def at_random(draw: int) -> Round:
    """Return a function that rounds up or down at random, more probably to the nearer integer; to it if `draw` is 0."""
    if not draw:
        return torch.round
    generator = torch.Generator().manual_seed(draw)
    return lambda x: (x + torch.rand(x.shape, generator=generator, dtype=x.dtype)).floor()


def quantised_layers(model: nn.Module, forms: Mapping[str, Form]) -> dict[str, tuple[nn.Linear, Form]]:
    """Return the linear layers whose weights are quantised, by name; `forms` by names of weights, tied ones by any."""
    named = model.named_parameters(remove_duplicate=False)
    form_of = {id(weight): forms[name] for name, weight in named if forms.get(name, PLAIN) != PLAIN}
    layers = ((name, each) for name, each in model.named_modules(remove_duplicate=False) if isinstance(each, nn.Linear))
    return {name: (each, form_of[id(each.weight)]) for name, each in layers if id(each.weight) in form_of}


class Rounder:
    """Hooks that round the inputs of quantised linear layers; `how` rounds to integers."""

    def __init__(self, how: Round) -> None:
        self.how = how

    def hook(self, form: Form) -> Any:
        """Return the pre-hook of a layer whose weight has a form."""
        return lambda _, inputs: (round_activations(inputs[0], form, self.how).to(inputs[0].dtype), *inputs[1:])


@contextmanager
def rounding_activations(model: nn.Module, forms: Mapping[str, Form], draw: int) -> Iterator[None]:
    """Return a context in which the inputs of quantised linear layers are rounded; at random if `draw` is not 0.

    Within another such context, this one takes its place.
    """
    if (outer := vars(model).get(ROUNDER)) is not None:
        before, outer.how = outer.how, at_random(draw)
        try:
            yield
        finally:
            outer.how = before
        return
    rounder = vars(model)[ROUNDER] = Rounder(at_random(draw))
    layers = {id(layer): (layer, form) for layer, form in quantised_layers(model, forms).values()}
    handles = [layer.register_forward_pre_hook(rounder.hook(form)) for layer, form in layers.values()]
    try:
        yield
    finally:
        del vars(model)[ROUNDER]
        for handle in handles:
            handle.remove()
