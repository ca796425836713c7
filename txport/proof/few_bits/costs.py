"""What each quantised matrix of a bundle costs in the outputs: how far its roundings move them, to second order.

The error e of a product, times a factor s, moves the outputs z by J e s. Their divergence is s^2 (J e)^T H (J e) / 2,
where H is that of the distance between outputs: diag(p) - p p^T for Kullback-Leibler, the identity for values.
For random vectors u with the covariance H, it is the mean of (u dz/ds)^2 / 2. So one run of PyTorch in fp32 and a few
of its gradients tell the costs of all matrices. Roundings of several matrices are independent, so costs add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.bundles.bundle import Bundle
from txport.bundles.forms import PLAIN, Form
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.streamed import Reader, in_memory
from txport.exporters.cpu.choose import size_of, wider_forms
from txport.exporters.cpu.columns import largest_columns
from txport.exporters.fused.quantize import dequantize, quantize
from txport.exporters.weights import holding
from txport.models.facts import Task
from txport.models.model import Model
from txport.proof.few_bits.activations import round_activations
from txport.proof.few_bits.loss import Trial, tensors_of

TINY = 1e-30
PIECE = 1 << 24  # weights that are multiplied at once
SAMPLED = 512  # outputs of a product
TOGETHER = 2  # rows of a trial whose values are in memory
AT_ONCE = 16  # places whose random vectors are drawn together
DRAWS = 8  # random vectors; the costs vary by a fifth
# Time of a product beside that of one scale for a row, mean of 1 and of 64 rows (docs/few-bits.md).
TIMES = {"dynamic": 0.9, "rows": 0.9, "invariant": 1.0, "columns": 1.3, "blocks": 1.6, "plain": 2.3}
WORTH = 1.0  # at least so many parts of the costs should a step save, for each part by which it raises the price
Layer = nn.Linear | nn.Embedding


@dataclass(frozen=True)
class Option:
    """A form of a matrix: its `cost` in outputs, its size in bytes, and its price, bytes and time of each weight."""

    form: Form
    cost: float
    bytes: int
    price: float


@dataclass(frozen=True)
class Matrix:
    """A matrix of a bundle, with `size` numbers of several packed weights; the bundle's form is the first option."""

    weights: tuple[str, ...]
    size: int
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """The name of the first weight."""
        return self.weights[0]

    @property
    def cost(self) -> float:
        """The cost in the bundle's form."""
        return self.options[0].cost


def measure_costs(bundle: Bundle, checkpoint: Checkpoint, trial: Trial) -> list[Matrix]:
    """Return the quantised matrices of a bundle with their forms, and what these cost in the outputs of a trial.

    A matrix is rounded as in the bundle, its activations as the kernels round them. The costs of its other forms follow
    from the errors of its products, for the same inputs. The weights are in memory once in fp32.
    """
    return [
        Matrix(
            weights,
            sum(layer.size for layer in _distinct(layers)),
            _options(layers[0].form, cost, layers, checkpoint.facts.task),
        )
        for weights, cost, layers in _measured(bundle, checkpoint, trial)
    ]


def costs_of(bundle: Bundle, checkpoint: Checkpoint, trial: Trial) -> list[tuple[float, str]]:
    """Return the costs of the quantised matrices of a bundle with their names; see `measure_costs`."""
    return [(cost, weights[0]) for weights, cost, _ in _measured(bundle, checkpoint, trial)]


def _measured(
    bundle: Bundle, checkpoint: Checkpoint, trial: Trial
) -> list[tuple[tuple[str, ...], float, list[Rounded]]]:
    """Return the weights of each matrix of a bundle, its cost and its layers."""
    checkpoint = smoothed(checkpoint, bundle.manifest.smoothing)
    model = in_memory(checkpoint.model).requires_grad_(False)
    held = holding(bundle, checkpoint)
    read = Reader.of(held.read or held.tensor)
    packs = sorted({stored.weights: stored.form for stored in bundle.manifest.quantization.values()}.items())
    layers = {
        weights: [Rounded(layer, partial(read.rows, name), form) for layer, name in _layers(model, weights)]
        for weights, form in packs
        if form is not None and form != PLAIN
    }
    every = [layer for each in layers.values() for layer in each]
    places = 0
    draws = [torch.Generator().manual_seed(draw) for draw in range(DRAWS)]
    with _in_place(every):
        for some in _parts(trial):
            outputs = tensors_of(model, some)
            places += sum(len(each) for each in outputs)
            _differentiate(model, outputs, every, draws)
    return [
        (weights, sum(layer.squares for layer in each) / (2 * DRAWS * places), each) for weights, each in layers.items()
    ]


def _parts(trial: Trial) -> Iterator[Trial]:
    """Yield a trial in parts of a few rows, whose values and gradients fit into memory."""
    for start in range(0, len(trial.sources), TOGETHER):
        rows = slice(start, start + TOGETHER)
        yield replace(trial, sources=trial.sources[rows], targets=trial.targets[rows])


def _differentiate(
    model: Model, outputs: Sequence[Tensor], layers: Sequence[Rounded], draws: Sequence[torch.Generator]
) -> None:
    """Add the squares of the derivatives of outputs (N, V) to the layers, for each draw; the factors are used up."""
    for layer in layers:
        layer.calls = max(layer.calls, len(layer.factors))
    owners = [layer for layer in layers for _ in layer.factors]
    factors = [factor for layer in layers for factor in layer.factors]
    for draw in draws:
        along = [_direction(model, each.detach(), draw) for each in outputs]
        found = torch.autograd.grad(outputs, factors, along, retain_graph=draw is not draws[-1], allow_unused=True)
        for layer, gradient in zip(owners, found, strict=True):
            layer.squares += 0.0 if gradient is None else float(gradient.double().square().sum())
    for layer in layers:
        layer.factors.clear()


def _direction(model: Model, outputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return random numbers (N, V) whose covariance is H of the measure of distance at these outputs."""
    along = torch.empty_like(outputs)
    for some, given in zip(*(torch.split(each, AT_ONCE) for each in (along, outputs)), strict=True):
        some.copy_(_some_direction(model, given, generator))
    return along


def _some_direction(model: Model, outputs: Tensor, generator: torch.Generator) -> Tensor:
    random = torch.randn(outputs.shape, generator=generator)
    if model.facts.ability == "embed":  # 1 - cosine
        directions = F.normalize(outputs, dim=-1)
        random -= directions * (random * directions).sum(-1, keepdim=True)
        random /= outputs.norm(dim=-1, keepdim=True).clamp_min(TINY)
        return random
    if model.facts.function_to_apply == "none":  # values
        return random
    probabilities = outputs.softmax(-1)
    random *= probabilities.sqrt()
    random -= probabilities * random.sum(-1, keepdim=True)
    return random


class Rounded:
    """A linear layer or an embedding whose output gets the error of its roundings, times factors that are 0.

    `read` reads rows of the weight as the bundle holds it. Its `inputs` are kept, and a factor (B, 1, ...) for each of
    its `calls` in a run; the `squares` of its derivatives are added up.
    """

    def __init__(self, layer: Layer, read: Callable[[object], Tensor], form: Form) -> None:
        self.layer = layer
        self.read = read
        self.form = form
        self.inputs: list[Tensor] = []
        self.factors: list[Tensor] = []
        self.calls = 0
        self.squares = 0.0
        self._outputs = 0.0

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.layer.weight.numel()

    def hook(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add the error to the output (see `nn.Module.register_forward_hook`)."""
        read, given = inputs[0].detach(), output.detach()
        self.inputs.append(read)
        self.factors.append(torch.zeros(len(output), *[1] * (output.dim() - 1), requires_grad=True))
        self._outputs += float(given.double().square().sum())
        return output + self.factors[-1] * self._error(read)

    @torch.no_grad()
    def _error(self, x: Tensor) -> Tensor:
        """Return the error of the bundle's form, computed for some rows of the weight at a time."""
        exact = self.layer.weight
        if isinstance(self.layer, nn.Embedding):
            return (self.read(x.flatten().numpy()) - exact[x.flatten()]).view(*x.shape, -1)
        rounded = round_activations(x, self.form).to(x.dtype)
        count = max(1, PIECE // exact.shape[1])
        pieces = [slice(start, start + count) for start in range(0, len(exact), count)]
        return torch.cat([F.linear(rounded, self.read(rows)) - F.linear(x, exact[rows]) for rows in pieces], -1)

    @torch.no_grad()
    def error(self, form: Form) -> float:
        """Return the sum of the squares of the errors in a form, relative to those of the outputs.

        It is estimated from at most `SAMPLED` outputs of a product: each is rounded by itself.
        """
        exact = self.layer.weight
        if isinstance(self.layer, nn.Embedding):
            ids = torch.cat([x.flatten() for x in self.inputs])
            held = self.read(ids.numpy()) if form == self.form else _in_form(exact[ids], form)
            return float((held - exact[ids]).double().square().sum()) / max(self._outputs, TINY)
        every = -(-len(exact) // SAMPLED)
        rows = slice(None, None, every)
        held = self.read(rows) if form == self.form else _in_form(exact[rows], form)
        error = 0.0
        for x in self.inputs:
            found = F.linear(round_activations(x, form).to(x.dtype), held) - F.linear(x, exact[rows])
            error += every * float(found.double().square().sum())
        return error / max(self._outputs, TINY)


def _layers(model: Model, weights: Iterable[str]) -> Iterator[tuple[Layer, str]]:
    """Yield the layers of a model that read some weights, and the first name of each weight."""
    first = first_names(model)
    for name in weights:
        weight = model.get_parameter(first[name])
        yield from (
            (layer, first[name]) for layer in model.modules() if isinstance(layer, Layer) and layer.weight is weight
        )


def _distinct(layers: Iterable[Rounded]) -> Iterable[Rounded]:
    """Return one layer for each weight."""
    return {id(each.layer.weight): each for each in layers}.values()


@contextmanager
def _in_place(layers: Iterable[Rounded]) -> Iterator[None]:
    """Return a context in which the layers are rounded."""
    handles = [each.layer.register_forward_hook(each.hook) for each in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _options(form: Form, cost: float, layers: list[Rounded], task: Task) -> tuple[Option, ...]:
    """Return the form of a matrix and wider ones, with their costs."""
    inputs = layers[0].layer.weight.shape[1]
    products = [each for each in layers if isinstance(each.layer, nn.Linear)]
    read = [x for each in products for x in each.inputs]
    shared = sum(each.calls for each in products) > 1
    columns = largest_columns(read, task)
    before = sum(each.error(form) for each in layers)
    options = []
    for each in (form, *wider_forms(form, columns, inputs, shared=shared)):
        error = 0.0 if each == PLAIN else sum(layer.error(each) for layer in layers) / max(before, TINY)
        size = sum(size_of(each, len(layer.layer.weight), inputs) for layer in _distinct(layers))
        time = TIMES[each.kind] * sum(layer.size for layer in _distinct(layers))
        options.append(Option(each, cost * error if each != form else cost, size, size + time))
    return tuple(options)


def _in_form(matrix: Tensor, form: Form) -> Tensor:
    """Return a matrix as a form stores it."""
    return torch.from_numpy(dequantize(quantize(matrix.numpy(), form)))


def choose_options(
    matrices: list[Matrix], aim: float, fits: Callable[[list[Form]], bool], worth: float = 0.0
) -> list[Option]:
    """Return an option of each matrix, so that their costs add up to at most `aim`, at a low price.

    Each step takes the form that saves most for its price; `fits` says whether forms are allowed. If nothing more
    fits, or saves at least `worth` parts of the costs for a price that is larger by one part, the costs are larger than
    `aim`.
    """
    chosen = [each.options[0] for each in matrices]
    while (cost := sum(each.cost for each in chosen)) > aim:
        price = sum(each.price for each in chosen)
        steps = [
            ((old.cost - new.cost) / cost / (new.price - old.price) * price, at, new)
            for at, old in enumerate(chosen)
            for new in matrices[at].options
            if new.cost < old.cost and new.price > old.price
        ]
        for gain, at, new in sorted(steps, key=lambda step: (-step[0], step[1])):
            if gain >= worth and fits([new.form if each == at else old.form for each, old in enumerate(chosen)]):
                chosen[at] = new
                break
        else:
            break
    return chosen
