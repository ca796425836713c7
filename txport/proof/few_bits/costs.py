"""What each quantised matrix of a bundle costs: PyTorch in fp32 with one matrix rounded, beside PyTorch in fp32.

A matrix is rounded as in the bundle, its activations as the kernels round them. The roundings of several matrices are
independent, and the divergence grows with the square of an error, so costs add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.bundles.bundle import Bundle
from txport.bundles.forms import PLAIN, Form
from txport.exporters.cpu.choose import size_of, wider_forms
from txport.exporters.cpu.columns import largest_columns
from txport.exporters.fused.quantize import dequantize, quantize
from txport.exporters.weights import holding
from txport.models.checkpoint import Checkpoint
from txport.models.model import Model
from txport.models.weights.plan import first_names
from txport.proof.few_bits.activations import round_activations
from txport.proof.few_bits.loss import Trial, divergence_of, outputs_of

TINY = 1e-30
# Time of a product beside that of one scale for a row, mean of 1 and of 64 rows (docs/few-bits.md).
TIMES = {"dynamic": 0.9, "rows": 0.9, "invariant": 1.0, "columns": 1.3, "blocks": 1.6, "plain": 2.3}
WORTH = 0.1  # at least so much smaller, in parts of all, must costs become for a price that is larger by as many parts
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

    There is one run of PyTorch for each matrix. The costs of its other forms follow from the errors of its products,
    for the same inputs.
    """
    model = checkpoint.model
    held = holding(bundle, checkpoint)
    expected = outputs_of(model, trial)
    packs = sorted({stored.weights: stored.form for stored in bundle.manifest.quantization.values()}.items())
    found = []
    for weights, form in packs:
        if form is None or form == PLAIN:
            continue
        layers = [Rounded(*each, form) for each in _layers(model, weights, checkpoint, held)]
        with _in_place(layers):
            cost = divergence_of(model.facts, expected, outputs_of(model, trial))
        found.append(Matrix(weights, sum(each.size for each in _distinct(layers)), _options(form, cost, layers, model)))
    return found


class Rounded:
    """A linear layer or an embedding whose output gets the error of its roundings; its `inputs` are kept."""

    def __init__(self, layer: Layer, exact: Tensor, held: Tensor, form: Form) -> None:
        self.layer = layer
        self.exact = exact
        self.held = held
        self.form = form
        self.inputs: list[Tensor] = []
        self._squares = 0.0

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.exact.numel()

    def hook(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add the error to the output (see `nn.Module.register_forward_hook`)."""
        self.inputs.append(inputs[0])
        self._squares += float(output.double().square().sum())
        return output + self._error(inputs[0], self.held, self.form)

    def error(self, form: Form) -> float:
        """Return the sum of the squares of the errors in a form, relative to those of the outputs."""
        held = self.held if form == self.form else _in_form(self.exact, form)
        errors = (float(self._error(x, held, form).double().square().sum()) for x in self.inputs)
        return sum(errors) / max(self._squares, TINY)

    def _error(self, x: Tensor, held: Tensor, form: Form) -> Tensor:
        if isinstance(self.layer, nn.Embedding):
            return F.embedding(x, held - self.exact)
        rounded = round_activations(x, form).to(x.dtype)
        return F.linear(rounded, held) - F.linear(x, self.exact)


def _layers(
    model: Model, weights: Iterable[str], checkpoint: Checkpoint, held: Checkpoint
) -> Iterator[tuple[Layer, Tensor, Tensor]]:
    """Yield the layers of a model that read some weights, the weights of each, and those in the bundle."""
    first = first_names(model)
    for name in weights:
        weight = model.get_parameter(first[name])
        exact, rounded = (each.tensor(first[name]) for each in (checkpoint, held))
        for layer in model.modules():
            if isinstance(layer, Layer) and layer.weight is weight:
                yield layer, exact, rounded


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
def _options(form: Form, cost: float, layers: list[Rounded], model: Model) -> tuple[Option, ...]:
    """Return the form of a matrix and wider ones, with their costs."""
    inputs = layers[0].exact.shape[1]
    read = [x for each in layers if isinstance(each.layer, nn.Linear) for x in each.inputs]
    columns = largest_columns(read, model.facts.task)
    before = sum(each.error(form) for each in layers)
    options = []
    for each in (form, *wider_forms(form, columns, inputs)):
        error = 0.0 if each == PLAIN else sum(layer.error(each) for layer in layers) / max(before, TINY)
        size = sum(size_of(each, len(layer.exact), inputs) for layer in _distinct(layers))
        time = TIMES[each.kind] * sum(layer.size for layer in _distinct(layers))
        options.append(Option(each, cost * error if each != form else cost, size, size + time))
    return tuple(options)


def _in_form(matrix: Tensor, form: Form) -> Tensor:
    """Return a matrix as a form stores it."""
    return torch.from_numpy(dequantize(quantize(matrix.numpy(), form)))


def choose_options(matrices: list[Matrix], aim: float, fits: Callable[[list[Form]], bool]) -> list[Option]:
    """Return an option of each matrix, so that their costs add up to at most `aim`, at a low price.

    Each step takes the form that saves most for its price; `fits` says whether forms are allowed. If nothing more
    fits, or is `WORTH` its price, the costs are larger than `aim`.
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
        for worth, at, new in sorted(steps, key=lambda step: (-step[0], step[1])):
            if worth >= WORTH and fits([new.form if each == at else old.form for each, old in enumerate(chosen)]):
                chosen[at] = new
                break
        else:
            break
    return chosen
