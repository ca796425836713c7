"""Places that PyTorch and a graph have in common, and what each computes there.

A tap is the input or the output of a linear map, a norm or an embedding, found in PyTorch by the module's name and
in the graph by the weight that a node reads, or an output of the graph. An isolated graph reads PyTorch's values at
every tap, so that what comes out at one was computed from right values, and an error stays where it arises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor, nn

from txport.bundles.forms import Stored
from txport.bundles.ports import CROSS_ATTENTION, ENCODER, IDS, MODEL
from txport.models.parts import NORM_TYPES, Additive, DotProduct
from txport.runtimes.onnx_runtime import ort
from txport.runtimes.sessions import may_saturate

Array = NDArray[Any]

IN, OUT, PORT = "in", "out", "port"
# Operators that multiply with a weight, and which of their inputs it is.
LINEAR = {"Gemm": 1, "MatMul": 1, "DynamicQuantizeMatMul": 1, "MatMulNBits": 1, "QGemm": 3}
LOOKUPS = ("Gather", "GatherBlockQuantized")
NORM = "LayerNormalization"


@dataclass(frozen=True)
class Tap:
    """One place: the modules by name (several where one node does the work of all), the side, and the graph's value."""

    modules: tuple[str, ...]
    side: str
    value: str
    readers: tuple[tuple[str, int], ...] = ()  # the first output of each node that reads an input, its place there
    quantized: bool = False

    @property
    def name(self) -> str:
        """`decoder.0.attention.query in`; of a port, its name."""
        return self.modules[0] if self.side == PORT else f"{'+'.join(self.modules)} {self.side}"

    @property
    def given(self) -> str:
        """What an isolated graph calls the input that brings PyTorch's value to this place."""
        return f"given {self.name}"


@dataclass(frozen=True)
class Span:
    """The nodes of a graph between the taps before a value and the value itself, and what they read."""

    nodes: tuple[ir.Node, ...]
    reads: tuple[str, ...]  # values at other taps
    inputs: tuple[str, ...]  # of the graph


@contextlib.contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, tuple[Array, ...]]]:
    """The call of each part while the model runs in the context: its arguments, and last what came out.

    Of linear maps, norms and embeddings there is one argument; of the core of an attention those of `DotProduct`.
    """
    record: dict[str, tuple[Array, ...]] = {}

    def hook(name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Tensor | None, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            given = output[0] if isinstance(output, tuple) else output
            record[name] = (*(each.numpy() for each in inputs if each is not None), given.numpy())

        return note

    kinds = (nn.Linear, nn.Embedding, *NORM_TYPES, DotProduct, Additive)
    watched = [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]
    handles = [module.register_forward_hook(hook(name)) for name, module in watched]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def truth(tap: Tap, record: Mapping[str, tuple[Array, ...]], expected: Mapping[str, Array]) -> Array | None:
    """What PyTorch computed at a tap; None if it did not get there."""
    if tap.side == PORT:
        return expected.get(tap.modules[0])
    parts = [record[name][-1 if tap.side == OUT else 0] for name in tap.modules if name in record]
    if len(parts) != len(tap.modules):
        return None
    return parts[0] if tap.side == IN else np.concatenate(parts, axis=-1)


def find_taps(model: ir.Model, role: str, table: Mapping[str, Stored]) -> list[Tap]:
    """Every tap of a graph, in the order in which it computes them; `table` says what its initializers are."""
    found: list[Tap] = []
    for value in model.graph.initializers.values():
        stored = table.get(str(value.name), Stored((str(value.name),)))
        if all(name.endswith(".weight") for name in stored.weights):
            modules = tuple(name.removesuffix(".weight") for name in stored.weights)
            for node, place in _readers(value):
                found.extend(_taps_of(node, place, modules, role, stored.is_quantised))
    known = {tap.value for tap in found if tap.side == OUT}
    # attention that the graph itself reads is no end of a part, and what follows from it shows
    ends = (
        each for each in model.graph.outputs if not (str(each.name).startswith(CROSS_ATTENTION) and list(each.uses()))
    )
    ports = (str(each.name) for each in ends)
    found += [Tap((name,), PORT, name) for name in ports if name not in known and name != IDS]  # two may be as good
    order = {str(value.name): at for at, node in enumerate(model.graph) for value in node.outputs}
    return sorted(found, key=lambda tap: (order.get(tap.value, -1), (OUT, PORT, IN).index(tap.side), tap.modules))


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that compute with a weight, transposed before or not."""
    for node, place in value.uses():
        if node.op_type == "Transpose":
            yield from _readers(node.outputs[0])
        else:
            yield node, place


def _taps_of(node: ir.Node, place: int, modules: tuple[str, ...], role: str, quantized: bool) -> Iterator[Tap]:
    if node.op_type in LOOKUPS and place == 0:
        if not modules[0].endswith(("_embedding.tokens", "projection")):  # a table of positions
            return
        embedding = "source_embedding" if role in (ENCODER, MODEL) else "target_embedding"
        yield Tap((f"{embedding}.tokens",), OUT, str(_end_of_lookup(node).name))
        return
    if node.op_type == "Mul":  # a norm of plain operators ends with its weight, and its bias where it has one
        yield Tap(modules, OUT, str(_with_bias(node).name))
        return
    if node.op_type == NORM and place == 1:
        sources, end = [node], node.outputs[0]
    elif LINEAR.get(node.op_type) == place:
        sources, end = _quantizers(node), _with_bias(node)
        if modules[0].endswith("_embedding.tokens"):  # tied
            modules = ("projection",)
    else:
        return
    read = sources[0].inputs[0]
    assert read is not None
    yield Tap(modules, IN, str(read.name), tuple((str(each.outputs[0].name), 0) for each in sources), quantized)
    yield Tap(modules, OUT, str(end.name), quantized=quantized)


def _quantizers(node: ir.Node) -> list[ir.Node]:
    """The nodes that read what a product's input is before it is brought into 8 bits, or the product itself."""
    before = _before(node) if node.op_type == "QGemm" else None
    if before is None or before.op_type != "QuantizeLinear":
        return [before or node]
    divided = _before(before)  # each row by its largest value, which is found in the same input
    largest = divided and _before(divided, 1)
    top = largest and _before(largest)
    size = top and _before(top)
    return [each for each in (divided, size) if each is not None]


def _before(node: ir.Node, place: int = 0) -> ir.Node | None:
    value = node.inputs[place]
    return None if value is None else value.producer()


def _with_bias(node: ir.Node) -> ir.Value:
    """What a product gives, in the scale of its rows and its bias added."""
    quantizers = _quantizers(node)
    uses = list(node.outputs[0].uses())
    if len(quantizers) > 1 and len(uses) == 1 and uses[0][0].inputs[1] is quantizers[0].inputs[1]:
        node = uses[0][0]
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0][0].op_type == "Add":
        other = uses[0][0].inputs[1 - uses[0][1]]
        if other is not None and other.is_initializer() and other.shape is not None and len(other.shape) == 1:
            return uses[0][0].outputs[0]
    return node.outputs[0]


def _end_of_lookup(node: ir.Node) -> ir.Value:
    """What a lookup gives once it is a floating point number for each dim again."""
    after = [user for user, _ in node.outputs[0].uses()]
    quantized = node.op_type == LOOKUPS[1] or any(user.op_type == "DequantizeLinear" for user in after)
    return after[0].outputs[0] if quantized and len(after) == 1 else node.outputs[0]


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
        content = ir.to_proto(model).SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name; inputs that the graph does not have are left out."""
        feed = {name: array for name, array in inputs.items() if name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
