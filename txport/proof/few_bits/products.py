"""Comparison of a quantised graph with PyTorch, which goes on with the graph's own result after each product.

A value near the middle of two steps is rounded either way, and one step is much more than the error of fp32. With the
graph's own inputs and results, neither PyTorch's roundings nor their effects can differ from the graph's: each product
and each part between two products is held to the tolerance of fp32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import INVARIANT, Form
from txport.bundles.graphs import read_ir
from txport.checkpoints.weights.streamed import converted, read_weight
from txport.models.model import Model
from txport.proof.bisect.isolation import Runner, show
from txport.proof.bisect.taps import Tap, find_products
from txport.proof.faults.calls import recording
from txport.proof.few_bits.activations import FLOAT, round_activations, slack
from txport.proof.few_bits.kernels import AS_SHIPPED, is_reproduced
from txport.proof.parity.calls import compare_call, no_crash
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import COMPUTING, Computation, Exact, last_bits
from txport.proof.parity.measures import Comparison, compare
from txport.proof.parity.replay import Call, Reference
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.system.arrays import Array
from txport.targets.ports import INPUT_FEATURES

Key = tuple[str, int]  # of a call of a layer: its name, and the index among its calls in one run

# Largest difference of the input of a product, relative to its largest value: what lies between two products adds up
# more errors of fp32 than one output does in general. Above it, PyTorch's own error in fp32 counts.
BETWEEN = 1e-5
COARSER = 2.0  # times the error of activations rounded by row is allowed where the kernel's roundings are not known
READ, GAVE = "in", "out"
TINY = 1e-30
FP32 = tolerance_of("fp32")
Hold = Callable[..., Comparison]


@dataclass(frozen=True)
class Product:
    """The part of a product in a graph that belongs to one layer: `columns` of the result of the tap `gave`."""

    read: Tap
    gave: Tap
    columns: slice
    form: Form


@dataclass(frozen=True)
class Graph:
    """A shipped graph whose outputs include the inputs and results of its products."""

    runner: Runner
    products: Mapping[Key, Product]


@dataclass(frozen=True)
class Pair:
    """A value of PyTorch and the graph's at one side of a product, as (rows, columns), and the allowed difference."""

    key: Key
    side: str
    expected: Array
    seen: Array
    allowed: float

    @cached_property
    def badness(self) -> float:
        """The largest difference divided by the allowed one; NaN if it is NaN."""
        return float(np.abs(self.expected - self.seen).max(initial=0.0)) / max(self.allowed, TINY)


class ByProduct(Reference):
    """The PyTorch model of a quantised bundle, run beside its graphs.

    `values` are the outputs of the graph in the last call; `wrong` are the inputs and results of its products that
    differ from PyTorch's, and `worst` is the largest difference of the others. The same features are encoded once; the
    last call was not `repeated` if it ran.
    """

    def __init__(self, exact: Exact, bundle: Bundle) -> None:
        narrow = Computation(exact.model, last_bits)  # its model is made when it is needed
        super().__init__(Exact(exact.model, narrow, narrow), bundle.manifest, remembers=True)
        self._bundle = bundle
        self._graphs: dict[str, Graph] = {}
        self._counts: dict[str, int] = {}
        self._own_values: dict[tuple[int, Key, str], Array] = {}
        self.values: dict[str, Array] = {}
        self.wrong: list[Pair] = []
        self.worst: Pair | None = None
        self.repeated = False
        self._encoded: dict[bytes, Call] = {}

    def call(self, role: str, step: int, inputs: Mapping[str, Array]) -> Call:
        """See `Reference.call`; the graph runs first."""
        cast = self._cast(role, inputs)
        features = cast[INPUT_FEATURES].tobytes() if INPUT_FEATURES in cast else None
        self.repeated = features in self._encoded
        if features is not None and self.repeated:
            return dataclasses.replace(self._encoded[features], step=step)
        if role not in self._graphs:
            self._graphs[role] = self._graph(role, cast)
        with no_crash(f"step {step}: the {role} graph"):
            self.values = self._graphs[role].runner.run(cast)
        self._own_values = {}
        self.wrong, self.worst = [], None
        call = super().call(role, step, inputs)
        if features is not None:
            self._encoded[features] = call
        return call

    def differences(self, case: Case, label: str, call: Call, tolerance: Tolerance) -> Iterator[Comparison]:
        """Yield the comparison of each side of a product that is wrong, else that of the largest difference."""
        for pair in self.wrong or ([] if self.worst is None else [self.worst]):
            yield self._judge(pair, call, partial(compare, case.name, label, call.step), tolerance)

    def _judge(self, pair: Pair, call: Call, hold: Hold, tolerance: Tolerance) -> Comparison:
        """Compare one side of a product; what the kernel may have rounded either way is no error."""
        hold = partial(hold, f"{pair.key[0]} {pair.side}", pair.expected)
        found = hold(pair.seen, pair.allowed)
        if found.passed or found.note:
            return found
        if pair.side == GAVE:
            product = self._graphs[call.role].products[pair.key]
            x = torch.from_numpy(self.values[product.read.value]).reshape(len(pair.expected), -1)
            weight = read_weight(self._exact.model, pair.key[0]).double()
            if not is_reproduced(product.form):
                error = float(((round_activations(x, INVARIANT) - x) @ weight.T).norm())
                return hold(pair.seen, np.inf, rms=COARSER * error / max(float(np.linalg.norm(pair.expected)), TINY))
            error = np.abs(pair.seen - pair.expected) - slack(x, weight, product.form).numpy()
            beyond = np.copysign(error.clip(min=0), pair.seen - pair.expected)
            found = hold(pair.expected + beyond, pair.allowed)
        largest = float(np.abs(pair.expected).max(initial=0.0))
        return tolerance.judge(found, largest, lambda draw: hold(self._own_side(pair, call, draw), 0.0))

    def _own_side(self, pair: Pair, call: Call, draw: int) -> Array:
        """Return the value of PyTorch in fp32 at one side of a product that is compared in detail."""
        self.own(call, next(iter(call.expected)), draw)
        return self._own_values[draw, pair.key, pair.side]

    def own(self, call: Call, name: str, draw: int = 0) -> Array:
        """See `Reference.own`: PyTorch in fp32, which reads the graph's results, too."""
        if self._exact.own.model is self._exact.model:
            with self._exact.encoding_again():
                narrow = Computation(converted(self._exact.model, FLOAT), last_bits)
            self._exact = Exact(self._exact.model, narrow, narrow)
        return super().own(call, name, draw)

    def close(self) -> None:
        """Release the sessions of the graphs, which hold their weights; the next call starts them again."""
        self._graphs.clear()
        self._encoded.clear()
        self.values = {}

    def _graph(self, role: str, inputs: Mapping[str, Array]) -> Graph:
        """Start a graph that also outputs the inputs and results of its products."""
        model = self._exact.model
        with recording(model, tensors=False) as record, self._exact.encoding_again():
            super()._run(model, role, inputs)
            self._before = None
            file = self._bundle.file(role)
            graph = read_ir(file)
            taps = find_products(graph, self.manifest.weights, model, dict(record))
        products: dict[Key, Product] = {}
        layers = dict(model.named_modules(remove_duplicate=False))
        for read, gave in taps:
            start = 0
            for name in gave.modules:
                end = start + layers[name].out_features
                assert gave.form is not None
                products[name, gave.nth] = Product(read, gave, slice(start, end), gave.form)
                start = end
        show(graph, [tap.value for pair in taps for tap in pair])
        return Graph(Runner(graph, file.parent, AS_SHIPPED, arena=False), products)

    def _run(self, model: Model, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with self._exact.encoding_again(), self._reading(model, self._graphs[role].products):
            return super()._run(model, role, inputs)

    @contextmanager
    def _reading(self, model: Model, products: Mapping[Key, Product]) -> Iterator[None]:
        """Return a context in which the layers of a model read and return the graph's values."""
        self._counts = {}
        names = {name for name, _ in products}
        handles = []
        for name, layer in model.named_modules():
            if name in names:
                handles.append(layer.register_forward_pre_hook(partial(self._read, model, products, name)))
                handles.append(layer.register_forward_hook(partial(self._gave, model, products, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _read(self, model: Model, products: Mapping[Key, Product], name: str, layer: nn.Module, inputs: Any) -> object:
        """Compare the input of a layer, and replace it by the graph's as the kernel rounds it."""
        key = (name, self._counts.get(name, 0))
        product = products.get(key)
        x: Tensor = inputs[0]
        if product is None or (seen := self.values[product.read.value]).size != x.numel():
            return None
        if product.columns.start == 0:
            self._note(model, key, READ, x, seen, BETWEEN)
        rounded = torch.from_numpy(seen)
        if is_reproduced(product.form):
            rounded = round_activations(rounded, product.form)
        return (rounded.reshape(x.shape).to(x.dtype), *inputs[1:])

    def _gave(
        self, model: Model, products: Mapping[Key, Product], name: str, layer: nn.Module, inputs: object, output: Tensor
    ) -> Tensor | None:
        """Compare the result of a layer, and replace it by the graph's."""
        key = (name, self._counts.get(name, 0))
        self._counts[name] = key[1] + 1
        product = products.get(key)
        if product is None:
            return None
        seen = self.values[product.gave.value][..., product.columns]
        self._note(model, key, GAVE, output, seen, FP32.largest)
        return torch.from_numpy(seen).reshape(output.shape).to(output.dtype) if seen.size == output.numel() else None

    def _note(self, model: Model, key: Key, side: str, expected: Tensor, seen: Array, limit: float) -> None:
        """Compare a value with the graph's, or keep PyTorch's own in fp32."""
        rows = expected.detach().reshape(-1, expected.shape[-1]).numpy()
        if model is not self._exact.model:
            if any((key, side) == (pair.key, pair.side) for pair in (*self.wrong, self.worst) if pair is not None):
                self._own_values[_draw(), key, side] = rows
            return
        allowed = limit * float(np.abs(rows).max(initial=0.0))
        found = Pair(key, side, rows, seen.reshape(-1, seen.shape[-1]), allowed)
        if found.expected.shape != found.seen.shape or not found.badness <= 1:
            self.wrong.append(found)
        elif self.worst is None or found.badness > self.worst.badness:
            self.worst = found


def _draw() -> int:
    """Return the number of the draw that is being computed."""
    return int(COMPUTING.get()[1])


def first_of(case: Case) -> Case:
    """Return a case with one source if it has features: the values between all products of one take gigabytes.

    Whole runs compare the others, and `verify` that rows are the same together and alone.
    """
    if not isinstance(case.sources[0], np.ndarray):
        return case
    return dataclasses.replace(case, sources=case.sources[:1], targets=case.targets[:1])


def compare_products(
    case: Case, label: str, reference: ByProduct, tolerance: Tolerance, seed: int
) -> Iterator[Comparison]:
    """Compare the products and the outputs of every graph of a quantised bundle, call by call, as in fp32.

    `tolerance` has the user's bounds. Raises `ParityError` if a graph does not run.
    """
    fp32 = dataclasses.replace(FP32, atol=tolerance.atol, rtol=tolerance.rtol)
    for call in reference.replay(case, seed):
        if reference.repeated:
            continue
        yield from reference.differences(case, label, call, fp32)
        yield from compare_call(case, label, call, reference.values, reference, fp32)
