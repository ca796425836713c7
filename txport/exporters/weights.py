"""The one file that holds the weights of all graphs of a bundle, each once, and what comes out of it again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import Maps, mapped, read_model
from txport.errors import ParityError
from txport.exporters.fused.quantize import Quantized, dequantize
from txport.models.checkpoint import Checkpoint
from txport.models.weights.copies import copied
from txport.models.weights.plan import first_names

Array = NDArray[Any]

FILE = "weights.bin"
NORMS = {  # which input is a norm's weight
    "LayerNormalization": 1,
    "RMSNormalization": 1,
    "SkipLayerNormalization": 2,
    "SkipSimplifiedLayerNormalization": 2,
}
INLINE_BELOW = 256  # bytes; what shape inference reads stays in the graph
PAGE = 4096  # a tensor of several pages starts on one, so that it can be mapped into memory


class WeightFile:
    """Tensors one after the other in a file, equal ones once; or only their places, of graphs without weights.

    One tensor is in memory at a time. Those that are read when they are written are told apart by their names, which
    stand for one tensor in all graphs of a bundle.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._end = 0
        self._places: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, int, str], int] = {}

    def place(self, name: str, tensor: ir.TensorProtocol) -> int:
        """Where a tensor lies; it is written if it is new."""
        key = (name, tensor.nbytes, str(tensor.dtype))
        if key not in self._named or not (self._file is None or isinstance(tensor, ir.LazyTensor)):
            self._named[key] = self._add(tensor)
        return self._named[key]

    def _add(self, tensor: ir.TensorProtocol) -> int:
        if self._file is None:
            return self._next(tensor.nbytes)
        content = _bytes_of(tensor)
        key = (hashlib.sha256(content).hexdigest(), str(tensor.dtype))
        if key not in self._places:
            before = self._end
            self._places[key] = self._next(tensor.nbytes)
            self._file.write(bytes(self._places[key] - before))
            self._file.write(content)
        return self._places[key]

    def _next(self, size: int) -> int:
        """The next place for so many bytes, which it takes."""
        start = self._end + -self._end % (PAGE if size >= PAGE else 64)
        self._end = start + size
        return start


def _bytes_of(tensor: ir.TensorProtocol) -> memoryview:
    """The content of a tensor as files have it, without a copy."""
    array: Array = tensor.numpy()
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(-1).view(np.uint8).data


def share_weights(models: dict[str, ir.Model], folder: Path) -> dict[str, dict[str, Any]]:
    """Write the weights of all graphs to `folder`, equal ones once, and let the graphs refer to them.

    -> those that have one name in several graphs, and where they lie, so that sessions can hold them once.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    with (folder / FILE).open("wb") as file:
        weights = WeightFile(file)
        for model in models.values():
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < INLINE_BELOW:
                    continue
                place = weights.place(str(value.name), tensor)
                entry: dict[str, Any] = {
                    "file": f"{folder.name}/{FILE}",
                    "offset": place,
                    "dtype": tensor.dtype.numpy().name,
                    "dims": list(tensor.shape.numpy()),
                }
                found.setdefault(str(value.name), []).append(entry)
                value.const_value = outside(tensor, str(value.name), folder, FILE, place)
    return {name: each[0] for name, each in found.items() if len(each) > 1 and all(one == each[0] for one in each)}


@contextlib.contextmanager
def standing_in(path: Path, needed: bool) -> Iterator[None]:
    """An empty file at a path while a graph without weights is checked, which asks for theirs."""
    if needed:
        path.touch()
    try:
        yield
    finally:
        if needed:
            path.unlink(missing_ok=True)


def leave_out(models: Iterable[ir.Model], folder: Path, file: str) -> None:
    """Let graphs say where their weights would lie in one file, one after the other."""
    places = WeightFile(None)
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            name = str(value.name)
            if isinstance(tensor, ir.LazyTensor):
                value.const_value = outside(tensor, name, folder, file, places.place(name, tensor))


def outside(tensor: ir.TensorProtocol, name: str, folder: Path, file: str, offset: int) -> ir.ExternalTensor:
    """A tensor as a graph holds it whose content lies in another file."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(file, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=folder)


@dataclass(frozen=True)
class Held:
    """A weight as a graph holds it, under the checkpoint's name; one in fewer bits also as it is stored."""

    name: str
    values: Array
    quantized: Quantized | None = None

    @property
    def form(self) -> Form | None:
        """The form of one that is quantised."""
        return None if self.quantized is None else self.quantized.form


def graph_weights(path: Path, maps: Maps | None = None) -> dict[str, Array]:
    """Every tensor that a graph holds, by name: initializers and constants, those of its branches too.

    What lies in another file is mapped into memory; with `maps`, what several graphs read there is one array.
    """
    return dict(_tensors(read_model(path, weights=False).graph, path, {} if maps is None else maps))


def graph_epsilons(path: Path) -> list[tuple[str, float]]:
    """The name of the weight of each norm of a graph, and the norm's epsilon."""
    graph = read_model(path, weights=False).graph
    norms = [node for node in graph.node if node.op_type in NORMS]
    found = [
        (node.input[NORMS[node.op_type]], next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5))
        for node in norms
    ]
    return found + list(_plain_epsilons(graph, path))


def _plain_epsilons(graph: onnx.GraphProto, path: Path) -> Iterator[tuple[str, float]]:
    """Those of norms in plain operators: x / Sqrt(mean + epsilon) * weight, or x / (Sqrt(mean) + epsilon) * weight."""
    made = {node.output[0]: node for node in graph.node}
    held = dict(_tensors(graph, path, {}))
    for node in (node for node in graph.node if node.op_type == "Mul" and len(node.input) == 2):
        added = _chain(made, node.input[0], "Div", "Sqrt", "Add") or _beside_root(made, node.input[0])
        if added is not None and added.input[1] in held and node.input[1] in held:
            yield node.input[1], float(held[added.input[1]])


def _beside_root(made: Mapping[str, onnx.NodeProto], value: str) -> onnx.NodeProto | None:
    """The sum that a value is divided by, if it is of a root."""
    added = _chain(made, value, "Div", "Add")
    return added if added is not None and _chain(made, added.input[0], "Sqrt") is not None else None


def _chain(made: Mapping[str, onnx.NodeProto], value: str, *operators: str) -> onnx.NodeProto | None:
    """The last of several nodes, each of which makes the last input of the one before, casts left out."""
    node = None
    for operator in operators:
        node = made.get(value)
        if node is not None and node.op_type == "Cast":
            node = made.get(node.input[0])
        if node is None or node.op_type != operator:
            return None
        value = node.input[-1]
    return node


def _tensors(graph: onnx.GraphProto, path: Path, maps: Maps, place: str = "") -> Iterator[tuple[str, Array]]:
    for tensor in graph.initializer:
        yield place + tensor.name, mapped(tensor, path, maps)
    for number, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield f"{place}{node.output[0]}", mapped(attribute.t, path, maps)
            elif attribute.type == onnx.AttributeProto.FLOATS:
                yield f"{place}{node.output[0]}", np.array(attribute.floats, np.float32)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g, path, maps, f"{place}{number}.{attribute.name}/")


def held_weights(initializers: Mapping[str, Array], table: Mapping[str, Stored]) -> Iterator[Held]:
    """The weights among the tensors of a graph, dequantised and unpacked; `table` says what they are."""
    for name, values in initializers.items():
        stored = table.get(name, Stored((name,)))
        if stored.form is None or not stored.is_quantised:
            yield from _unpack(stored, values)
        elif (scales := read_scales(stored, initializers)) is not None:
            quantized = Quantized(stored.form, values, scales)
            for name, rows in parts_of(stored, quantized.shape[0]):
                part = quantized.rows(rows)
                yield Held(name, dequantize(part), part)


def read_scales(stored: Stored, tensors: Mapping[str, Array]) -> Array | None:
    """The scales of a stored matrix among the tensors of a graph, those of a lookup if it has no others; else None."""
    if stored.scales is not None and stored.scales in tensors:
        return tensors[stored.scales]
    lookup = tensors.get(stored.lookup_scales) if stored.lookup_scales else None
    return None if lookup is None else lookup[..., 0]


def _unpack(stored: Stored, values: Array) -> Iterator[Held]:
    if len(stored.weights) == 1:
        yield Held(stored.weights[0], values)
    else:
        yield from (Held(name, values[rows]) for name, rows in parts_of(stored, len(values)))


def parts_of(stored: Stored, rows: int) -> Iterator[tuple[str, slice]]:
    """The weights in an initializer of so many rows, and which rows are theirs."""
    count = len(stored.weights)
    start = 0
    for name, size in zip(stored.weights, stored.sizes or [rows // count] * count, strict=True):
        yield name, slice(start, start + size)
        start += size


def holding(bundle: Bundle, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the weights that a quantised bundle holds in their place; any other checkpoint as it is.

    What such a bundle does not quantise is in its type, 16 bits on the device.
    Random weights of a large preset are read from the bundle too where it holds them as they are: that takes less time
    than to draw them again, and proof compares them first.
    """
    if not bundle.manifest.quantization and not (_is_large_preset(checkpoint) and bundle.manifest.precision == "fp32"):
        return checkpoint
    checkpoint = _rounded(checkpoint, getattr(torch, bundle.manifest.dtype))
    found = _held_parts(bundle, checkpoint.outline, plain=_is_large_preset(checkpoint))
    if checkpoint.read is not None:
        return dataclasses.replace(
            checkpoint, read=lambda name: torch.from_numpy(found[name]()) if name in found else checkpoint.tensor(name)
        )
    model = copied(checkpoint.model)
    with torch.no_grad():
        for name, values in found.items():
            model.get_parameter(name).copy_(torch.from_numpy(values()))
    return dataclasses.replace(checkpoint, outline=model)


def _rounded(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
    """A checkpoint whose numbers are those of a type, still in 32 bits."""
    if dtype == torch.float32:
        return checkpoint
    outline = copied(checkpoint.outline, dtype).float()
    read = checkpoint.read
    narrow = None if read is None else (lambda name: read(name).to(dtype).float())
    return dataclasses.replace(checkpoint, outline=outline, read=narrow)


def _is_large_preset(checkpoint: Checkpoint) -> bool:
    return checkpoint.read is not None and checkpoint.folder is None


def _held_parts(bundle: Bundle, model: nn.Module, *, plain: bool) -> dict[str, Callable[[], Array]]:
    """What reads each weight, by its first name, that a bundle holds in fewer bits, or, if `plain`, as it is."""
    found: dict[str, Callable[[], Array]] = {}
    first = first_names(model)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    for role in bundle.manifest.driven:
        tensors = graph_weights(bundle.file(role))
        for name, values in tensors.items():
            stored = bundle.manifest.weights.get(name, Stored((name,)))
            scales = read_scales(stored, tensors) if stored.is_quantised else None
            if scales is not None and stored.form is not None:
                whole = Quantized(stored.form, values, scales)
                for weight, rows in parts_of(stored, whole.shape[0]):
                    part = whole.rows(rows)
                    if shapes.get(first.get(weight, "")) != part.shape:
                        there = f"one of shape {shapes[first[weight]]}" if weight in first else "no such weight"
                        raise ParityError(f"the bundle holds {weight} of shape {part.shape}, the checkpoint {there}")
                    found[first[weight]] = partial(dequantize, part)
            elif plain and not stored.is_quantised:
                for held in _unpack(stored, values):
                    if shapes.get(first.get(held.name, "")) == held.values.shape:
                        found[first[held.name]] = partial(np.array, held.values)  # which may be written to
    return found
