"""Reference calls of the graphs of a bundle, computed by PyTorch in float64 for a batch of sources."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport.bundles.manifest import Manifest
from txport.exporters.exporter import exporter_of
from txport.models.facts import Facts, Task
from txport.models.model import Model
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact
from txport.system.arrays import Array
from txport.system.packages import named
from txport.targets import ports
from txport.targets.ports import Graph

SPARE = 3  # positions of a prompt's caches that it does not fill
QUIET = 0.25  # times the size of the model's own keys: with random keys, attention would be sharper than it ever is


@dataclass(frozen=True)
class Call:
    """One run of one graph, by port: all inputs, in the bundle's precision, and all outputs that are determined.

    Rounding may decide which token is the most probable. If a graph selects tokens, `choices` (R, V) are therefore the
    scores by which its tokens are judged.
    """

    role: str
    step: int
    inputs: dict[str, Array]
    expected: dict[str, Array]
    choices: Array | None = None
    becomes: Mapping[str, str] = field(default_factory=dict)  # output with a new state -> input with the old state

    @property
    def logits(self) -> Array | None:
        """The logits that the graph outputs; without them, `choices`, which may be None."""
        return self.expected.get(ports.LOGITS, self.choices)

    def new_places(self, name: str) -> NDArray[np.bool_] | None:
        """Return where a new state differs from the old one (bool); None for other outputs and shapes."""
        before = self.inputs.get(self.becomes.get(name, ""))
        after = self.expected[name]
        return None if before is None or before is after or before.shape != after.shape else before != after


class Reference:
    """The model with the ports of a bundle's graphs. It computes in float64 and stores its outputs in fp32.

    If it `remembers`, it does not run the model again if a call differs from the last one only in the requested tokens.
    """

    def __init__(self, exact: Exact, manifest: Manifest, *, remembers: bool = False) -> None:
        self._exact = exact
        self.manifest = manifest
        self._remembers = remembers
        self._before: tuple[Model, list[Array], tuple[torch.Tensor, ...]] | None = None
        self._own: tuple[Mapping[str, Array], dict[int, dict[str, Array]]] = (
            {},
            {},
        )  # of the last call: inputs, outputs by draw

    @property
    def model(self) -> Model:
        """The model in float64 that computes the reference, so that callers can record its layers."""
        return self._exact.model

    def replay(self, case: Case, seed: int) -> Iterator[Call]:
        """Yield the calls of a case for the target and task of the bundle; `seed` determines the random inputs."""
        replays: Mapping[Task, Replay] = named(self.manifest.made_for.replays)
        return replays[self.facts.task](self, case, np.random.default_rng(seed))

    @property
    def facts(self) -> Facts:
        """The facts of the model."""
        return self.manifest.facts

    def call(self, role: str, step: int, inputs: Mapping[str, Array]) -> Call:
        """Return one call of a graph with its exact outputs, given inputs rounded to the bundle's precision."""
        cast = self._cast(role, inputs)
        becomes = self.manifest.graphs[role].becomes
        return Call(role, step, cast, self._run(self._exact.model, role, cast), becomes=becomes)

    def _cast(self, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        graph = self.manifest.graphs[role]
        cast = {name: held_as(graph.port(name).dtype, array) for name, array in inputs.items()}
        if self.manifest.made_for.on_gpu:  # arrays in 16 bits exist only on the device
            cast = {name: array.astype(np.float32) if is_float(array) else array for name, array in cast.items()}
        return cast

    def own(self, call: Call, name: str, draw: int = 0) -> Array:
        """Return one output of PyTorch itself in the bundle's precision; with random last bits if `draw` is not 0."""
        if self._own[0] is not call.inputs:
            self._own = call.inputs, {}
        known = self._own[1]
        if draw not in known:
            self._before = None  # the same model computes differently in this context
            with self._exact.own.context(draw):
                known[draw] = self._run(self._exact.own.model, call.role, call.inputs)
            self._before = None
        return known[draw][name]

    @torch.inference_mode()
    def _run(self, model: Model, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        dtype = next(model.parameters()).dtype
        given = ((torch.from_numpy(array), is_float(array)) for array in inputs.values())
        tensors = [x.to(dtype) if cast else x for x, cast in given]
        graph = self.manifest.graphs[role]
        if not graph.has_weights:
            return moved(graph, inputs)
        if exporter_of(self.manifest.target).traced(graph) != graph:  # tokens are selected after what is traced
            outputs = self._stepped(model, inputs, tensors)
        else:
            outputs = module_of(model, self.manifest, role)(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        names = [port.name for port in graph.outputs]
        stored = (each.float() if each.is_floating_point() else each for each in outputs)
        return {name: each.numpy() for name, each in zip(names, stored, strict=True)}

    def _stepped(
        self, model: Model, inputs: Mapping[str, Array], tensors: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs of a step; with the same arrays as in the last step, only select its tokens again."""
        arrays = [array for name, array in inputs.items() if name not in (ports.COUNT, ports.ALIGN)]
        before = self._before
        if before is None or before[0] is not model or not all(map(operator.is_, before[1], arrays)):
            before = (model, arrays, module_of(model, self.manifest, ports.STEP)(*tensors[: len(arrays)]))
        self._before = before if self._remembers else None
        return chosen(before[2], self.manifest, *tensors[len(arrays) :])


def held_as(dtype: str, array: Array) -> Array:
    """Return an array in the dtype of a port; integers stay unchanged."""
    return array.astype(np.dtype(dtype), copy=False) if is_float(array) else array


def is_float(array: Array) -> bool:
    """Return whether an array holds floating-point numbers."""
    return bool(np.issubdtype(array.dtype, np.floating)) or array.dtype.name == "bfloat16"


def module_of(model: Model, manifest: Manifest, role: str) -> Callable[..., Any]:
    """Return the PyTorch function of a graph; that of a step of the cpu target does not select the best tokens."""
    return exporter_of(manifest.target).modules[manifest.facts.task][role](model)


def chosen(outputs: tuple[torch.Tensor, ...], manifest: Manifest, *asked: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a cpu step: PyTorch selects the tokens, and attention is empty unless requested."""
    *aligns, count = asked
    logits, *caches = outputs
    scores = torch.log_softmax(logits, 1) if count > 0 else logits
    if manifest.facts.attention is not None:
        attention = caches.pop()
        caches.append(attention if aligns[0] else attention[:0, :0])
    return (logits, *caches, *scores.topk(abs(int(count)), dim=1))


def source_port(reference: Reference) -> str:
    """Return the name of the encoder's input for sources."""
    return reference.manifest.graphs[ports.ENCODER].inputs[0].name


def moved(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the expected outputs of a graph without weights."""
    names = list(inputs)
    outputs = [port.name for port in graph.outputs]
    kept = [inputs[name] for name in names[: len(outputs)]]
    others = [inputs[name] for name in names[len(outputs) : 2 * len(outputs)] if name not in (ports.ROWS, ports.MORE)]
    how: Callable[[Array, int], Array]
    if ports.ROWS in inputs and not others:
        how = lambda values, at: values[inputs[ports.ROWS]]  # noqa: E731
    elif ports.MORE in inputs:
        how = lambda values, at: np.pad(values, ((0, 0), (0, int(inputs[ports.MORE][0])), (0, 0)))  # noqa: E731
    else:
        how = lambda values, at: _replaced(values, inputs[ports.ROWS], others[at])  # noqa: E731
    return {name: how(values, at) for at, (name, values) in enumerate(zip(outputs, kept, strict=True))}


def _replaced(values: Array, rows: Array, others: Array) -> Array:
    found = values.copy()
    found[rows] = others
    return found


def size_of(values: Array) -> float:
    """Return the RMS of the values; 1 for zeros."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0


Replay = Callable[[Reference, Case, np.random.Generator], Iterator[Call]]  # yields the calls of a case
