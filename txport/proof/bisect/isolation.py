"""Graphs of which each part reads PyTorch's values, so that an error stays where it arises, and what runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from txport.proof.bisect.taps import Tap
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.sessions import may_saturate
from txport.system.cores import core_limit

Array = NDArray[Any]


@dataclass(frozen=True)
class Span:
    """The nodes of a graph between the taps before a value and the value itself, and what they read."""

    nodes: tuple[ir.Node, ...]
    reads: tuple[str, ...]  # values at other taps
    inputs: tuple[str, ...]  # of the graph


def span_before(model: ir.Model, taps: Sequence[Tap], tap: Tap) -> Span:
    """What lies between a tap and those before it."""
    tapped = {each.value for each in taps}
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    nodes: set[ir.Node] = set()
    reads: dict[str, None] = {}
    inputs: dict[str, None] = {}
    waiting = [values[tap.value]] if tap.value in values else []
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        for value in node.inputs:
            if value is None or value.is_initializer():
                continue
            if str(value.name) in tapped:
                reads[str(value.name)] = None
            elif value.producer() is None:
                inputs[str(value.name)] = None
            else:
                waiting.append(value)
    return Span(tuple(node for node in model.graph if node in nodes), tuple(reads), tuple(inputs))


def isolate(model: ir.Model, taps: Sequence[Tap], dtype: str) -> None:
    """Let whatever reads at a tap read PyTorch's values, which become inputs."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    given = {tap: ir.Value(name=tap.given, type=kind) for tap in taps}
    model.graph.inputs.extend(given.values())
    edges = set()
    for tap in taps:
        for reader, place in tap.readers:
            node = values[reader].producer()
            assert node is not None
            node.replace_input_with(place, given[tap])
            edges.add((node, place))
    first: dict[str, Tap] = {}
    for tap in taps:
        first.setdefault(tap.value, tap)
    for name, tap in first.items():
        for node, place in list(values[name].uses()) if name in values else ():
            if (node, place) not in edges:
                node.replace_input_with(place, given[tap])


def show(model: ir.Model, names: Sequence[str]) -> None:
    """Make more values outputs of a graph."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    shown = {str(value.name) for value in model.graph.outputs}
    model.graph.outputs.extend(values[name] for name in dict.fromkeys(names) if name in values and name not in shown)


class Runner:
    """A graph in memory, its weights where they lie, on ONNX Runtime at one level of its optimiser."""

    def __init__(self, model: ir.Model, folder: Path, level: Any = None) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # what fails is raised, and need not be logged
        none = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = none if level is None else level
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # PyTorch runs in between
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        options.add_session_config_entry("session.x64quantprecision", "1" if may_saturate() else "0")
        options.intra_op_num_threads = core_limit() or 0
        content = ir.to_proto(model).SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name; inputs that the graph does not have are left out."""
        feed = {name: array for name, array in inputs.items() if name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
