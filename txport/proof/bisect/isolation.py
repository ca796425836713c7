"""Isolated graphs, in which each part reads PyTorch's values, so an error stays where it arises; and their runner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from txport.exporters.fused.rewrite import once
from txport.exporters.weights import FILE, outside
from txport.proof.bisect.taps import Tap
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.sessions import may_saturate
from txport.system.arrays import Array
from txport.system.cores import core_limit

SIGNED = {"QGemm": (3, 5), "DynamicQuantizeMatMul": (1, 3)}  # products in 8 bits -> the weight, and its zero points

LARGE = 1 << 20  # bytes of a weight that is given to a session beside its graph
GIVEN = (ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)  # types of such weights


@dataclass(frozen=True)
class Span:
    """The nodes that compute a value from the taps before it, and the values that they read."""

    nodes: tuple[ir.Node, ...]
    reads: tuple[str, ...]  # names of values at other taps
    inputs: tuple[str, ...]  # names of graph inputs


def span_before(model: ir.Model, taps: Sequence[Tap], tap: Tap) -> Span:
    """Return the span between a tap and the taps before it."""
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
        for value in _read_by(node):
            if value.is_initializer():
                continue
            if str(value.name) in tapped:
                reads[str(value.name)] = None
            elif value.producer() is None:
                inputs[str(value.name)] = None
            else:
                waiting.append(value)
    return Span(tuple(node for node in model.graph if node in nodes), tuple(reads), tuple(inputs))


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads; if it holds graphs, also those that these read."""
    yield from (value for value in node.inputs if value is not None)
    for held in (each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH):
        for inner in held:
            yield from _read_by(inner)


def isolate(model: ir.Model, taps: Sequence[Tap], dtype: str) -> None:
    """Replace the value at each tap, for the nodes that read it, by a new graph input for PyTorch's value."""
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
    """Make the named values outputs of a graph."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    shown = {str(value.name) for value in model.graph.outputs}
    model.graph.outputs.extend(values[name] for name in dict.fromkeys(names) if name in values and name not in shown)


def only(model: ir.Model, names: Iterable[str], inputs: Sequence[str] = ()) -> ir.Model:
    """Return the part of a graph that computes the named values from its own inputs and from the values `inputs`."""
    given = [*(str(each.name) for each in model.graph.inputs), *inputs]
    computed = {value.name for node in model.graph for value in node.outputs}
    found = ir.convenience.extract(model.graph, given, [name for name in dict.fromkeys(names) if name in computed])
    found.inputs[:] = [value for value in found.inputs if list(value.uses())]
    return ir.Model(found, ir_version=model.ir_version)


def make_unsigned(model: ir.Model) -> None:
    """Make the 8-bit weights of products unsigned, and so their zero points: sums are then exact on x86 without VNNI.

    ONNX Runtime does it by an optimisation, if it has any.
    """
    for node in model.graph:
        places = SIGNED.get(node.op_type, ())
        if not places or (weight := node.inputs[places[0]]) is None or weight.dtype != ir.DataType.INT8:
            continue
        for place in places:
            old = node.inputs[place]  # no zero points are one of 0
            array = np.zeros(1, np.int8) if old is None or old.const_value is None else old.const_value.numpy()
            name = f"{weight.name}.unsigned.{place}.{node.name}"
            node.replace_input_with(place, once(model, name, (array.astype(np.int16) + 128).astype(np.uint8)))


def without_weights(model: ir.Model, folder: Path) -> tuple[ir.Model, dict[str, Any]]:
    """Return a copy of a graph without its large weights in memory, and these: a message has less than 2 GB."""
    other = model.clone()
    taken = {}
    for name, value in other.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype not in GIVEN:
            continue
        if tensor.nbytes >= LARGE:
            taken[name] = ort.OrtValue.ortvalue_from_numpy(tensor.numpy())
            value.const_value = outside(tensor, name, folder, FILE, 0)  # nothing is read there
    return other, taken


CAST = ("float16", "tensor(float)")


class Runner:
    """An ONNX Runtime session on the CPU for a graph in memory, with its weights in `folder`.

    `level` is the optimisation level; None disables all optimisations. Without `arena`, memory is given back at once.
    Without `packs`, kernels read the weights in their files, and the session has no copy of them.
    """

    def __init__(
        self, model: ir.Model, folder: Path, level: object = None, *, arena: bool = True, packs: bool = True
    ) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_prepacking", "0" if packs else "1")
        options.enable_cpu_mem_arena = arena
        options.log_severity_level = 4  # errors are raised, so they need not be logged
        none = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = none if level is None else level
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # PyTorch runs in between
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        is_exact = may_saturate() and any(node.op_type in SIGNED for node in model.graph)
        options.add_session_config_entry("session.x64quantprecision", "1" if is_exact else "0")
        options.intra_op_num_threads = core_limit() or 0
        if level is None and may_saturate():
            make_unsigned(model)
        model, self._weights = without_weights(model, folder)
        options.add_external_initializers(list(self._weights), list(self._weights.values()))
        content = ir.to_proto(model).SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name: each.type for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph and return its outputs by name; inputs that the graph does not have are ignored.

        A graph that was cast to fp32 also takes arrays in fp16.
        """
        feed = {
            name: array.astype(np.float32) if (str(array.dtype), self._inputs[name]) == CAST else array
            for name, array in inputs.items()
            if name in self._inputs
        }
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))

    def run_in_place(self, inputs: Mapping[str, Array], becomes: Mapping[str, str]) -> dict[str, Array]:
        """Run the graph with the outputs in `becomes` in the memory of inputs, as drivers do; return the others."""
        feed = {name: ort.OrtValue.ortvalue_from_numpy(inputs[name]) for name in self._inputs}
        io = self._session.io_binding()
        for name, value in feed.items():
            io.bind_ortvalue_input(name, value)
        for name in self._outputs:
            if name in becomes:
                io.bind_ortvalue_output(name, feed[becomes[name]])
            else:
                io.bind_output(name)
        self._session.run_with_iobinding(io)
        found = zip(self._outputs, io.get_outputs(), strict=True)
        return {name: value.numpy() for name, value in found if name not in becomes}
