"""The weight file of a bundle, shared by all graphs, and functions that read weights from graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import Maps, mapped, read_model
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.streamed import Reader, copied
from txport.errors import ParityError
from txport.exporters.fused.quantize import Quantized, dequantize, folded, unpack
from txport.system.arrays import Array

FILE = "weights.bin"
NORMS = {  # index of the weight input
    "LayerNormalization": 1,
    "RMSNormalization": 1,
    "SkipLayerNormalization": 2,
    "SkipSimplifiedLayerNormalization": 2,
}
INLINE_BELOW = 256  # bytes; small tensors stay in the graph, since shape inference reads them
PAGE = 4096  # bytes; larger tensors are aligned to it, so that they can be mapped into memory
KEPT = 1 << 28  # bytes of quantised weights that are kept as fp32 while PyTorch computes with them


class WeightFile:
    """A file of consecutive tensors; equal tensors are written once. Without a file, only offsets are assigned.

    One tensor is in memory at a time. Lazy tensors are identified by name, size and type: a name stands for one tensor
    in all graphs of a bundle.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._end = 0
        self._places: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, int, str], int] = {}

    def place(self, name: str, tensor: ir.TensorProtocol) -> int:
        """Return the offset of a tensor in bytes; write it if it is new."""
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
        """Reserve `size` bytes and return their offset."""
        start = self._end + -self._end % (PAGE if size >= PAGE else 64)
        self._end = start + size
        return start


def _bytes_of(tensor: ir.TensorProtocol) -> memoryview:
    """Return the little-endian content of a tensor, without a copy where possible."""
    array: Array = tensor.numpy()
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(-1).view(np.uint8).data


def share_weights(models: dict[str, ir.Model], folder: Path) -> dict[str, dict[str, object]]:
    """Write the weights of all graphs to one file in `folder`, equal ones once, and make the graphs refer to it.

    Return the location of each weight that has the same name in several graphs (file, offset, dtype, dims), so that
    sessions can share it.
    """
    found: dict[str, list[dict[str, object]]] = {}
    with (folder / FILE).open("wb") as file:
        weights = WeightFile(file)
        for model in models.values():
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < INLINE_BELOW:
                    continue
                place = weights.place(str(value.name), tensor)
                entry: dict[str, object] = {
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
    """Create an empty file at `path` while a graph without weights is checked: the ONNX checker requires one."""
    if needed:
        path.touch()
    try:
        yield
    finally:
        if needed:
            path.unlink(missing_ok=True)


def leave_out(models: Iterable[ir.Model], folder: Path, file: str) -> None:
    """Make graphs without weights state the location that each weight would have in one file."""
    places = WeightFile(None)
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            name = str(value.name)
            if isinstance(tensor, ir.LazyTensor):
                value.const_value = outside(tensor, name, folder, file, places.place(name, tensor))


def outside(tensor: ir.TensorProtocol, name: str, folder: Path, file: str, offset: int) -> ir.ExternalTensor:
    """Return an external tensor of a graph, whose content is in `file` at `offset`."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(file, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=folder)


@dataclass(frozen=True)
class Held:
    """A weight read from a graph, with the checkpoint's name; a quantised one also has its stored form."""

    name: str
    values: Array
    quantized: Quantized | None = None

    @property
    def form(self) -> Form | None:
        """Return the storage form of a quantised weight, None for others."""
        return None if self.quantized is None else self.quantized.form


def graph_weights(path: Path, maps: Maps | None = None) -> dict[str, Array]:
    """Return all tensors of a graph by name: initializers and constants, including those of its branches.

    Tensors in another file are mapped into memory; graphs that pass the same `maps` share the arrays.
    """
    return dict(_tensors(read_model(path, weights=False).graph, path, {} if maps is None else maps))


def graph_epsilons(path: Path) -> list[tuple[str, float]]:
    """Return (weight name, epsilon) for each norm of a graph."""
    graph = read_model(path, weights=False).graph
    norms = [node for node in graph.node if node.op_type in NORMS]
    found = [
        (node.input[NORMS[node.op_type]], next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5))
        for node in norms
    ]
    return found + list(_plain_epsilons(graph, path))


def _plain_epsilons(graph: onnx.GraphProto, path: Path) -> Iterator[tuple[str, float]]:
    """Yield those of norms in plain operators: x / Sqrt(mean + eps) * weight, or x / (Sqrt(mean) + eps) * weight."""
    made = {node.output[0]: node for node in graph.node}
    held = dict(_tensors(graph, path, {}))
    for node in (node for node in graph.node if node.op_type == "Mul" and len(node.input) == 2):
        added = _chain(made, node.input[0], "Div", "Sqrt", "Add") or _beside_root(made, node.input[0])
        if added is not None and added.input[1] in held and node.input[1] in held:
            yield node.input[1], float(held[added.input[1]])


def _beside_root(made: Mapping[str, onnx.NodeProto], value: str) -> onnx.NodeProto | None:
    """Return the Add of a Sqrt that is the divisor of a value, otherwise None."""
    added = _chain(made, value, "Div", "Add")
    return added if added is not None and _chain(made, added.input[0], "Sqrt") is not None else None


def _chain(made: Mapping[str, onnx.NodeProto], value: str, *operators: str) -> onnx.NodeProto | None:
    """Follow `operators` from a value through last inputs, skipping Casts; return the last node or None."""
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
    """Yield the weights of a graph, dequantised and unpacked; `table` states how each initializer is stored."""
    for name, values in initializers.items():
        stored = table.get(name, Stored((name,)))
        if not stored.is_quantised:
            yield from _unpack(stored, values)
        elif (quantized := read_quantized(stored, values, initializers)) is not None:
            for name, rows in parts_of(stored, quantized.shape[0]):
                part = quantized.rows(rows)
                yield Held(name, dequantize(part), part)


def read_quantized(stored: Stored, values: Array, tensors: Mapping[str, Array]) -> Quantized | None:
    """Return a stored matrix of a graph; None if the graph has not all that belongs to it."""
    form, scales = stored.form, read_scales(stored, tensors)
    wanted = form is not None and (stored.columns if form.columns else stored.zeros if form.zeros else None)
    if form is None or scales is None or (wanted and wanted not in tensors):
        return None
    zeros = tensors[stored.zeros] if form.zeros else None
    if form.kind == "qdq":
        return Quantized(form, folded(values, form), scales, zeros=zeros)
    zeros = None if zeros is None else unpack(zeros)[:, : scales.shape[1]]
    return Quantized(form, values, scales, tensors[stored.columns] if form.columns else None, zeros)


def read_scales(stored: Stored, tensors: Mapping[str, Array]) -> Array | None:
    """Return the scales of a stored matrix from the tensors of a graph, otherwise those of its lookup, or None."""
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
    """Yield (weight, its rows) for each weight in an initializer with `rows` rows."""
    count = len(stored.weights)
    start = 0
    for name, size in zip(stored.weights, stored.sizes or [rows // count] * count, strict=True):
        yield name, slice(start, start + size)
        start += size


def holding(bundle: Bundle, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with its weights replaced by those of a quantised bundle; otherwise return it unchanged.

    Weights that such a bundle does not quantise are rounded to its dtype (16 bits on the device).
    For a large preset, the random weights that the bundle stores unquantised are read from it too: this is faster than
    generating them again, and proof compares them first. Raises `ParityError` if shapes or names of quantised weights
    differ.
    """
    if not bundle.manifest.quantization and not (_is_large_preset(checkpoint) and bundle.manifest.precision == "fp32"):
        return checkpoint
    checkpoint = smoothed(checkpoint, bundle.manifest.smoothing)
    checkpoint = _rounded(checkpoint, getattr(torch, bundle.manifest.dtype))
    found = _held_parts(bundle, checkpoint.outline, plain=_is_large_preset(checkpoint))

    def rows(name: str, index: Any) -> Tensor:
        if name not in found:
            return Reader.of(checkpoint.tensor).rows(name, index)
        part = found[name]
        return torch.from_numpy(dequantize(part.rows(index)) if isinstance(part, Quantized) else np.array(part[index]))

    kept: dict[str, Tensor] = {}

    def whole(name: str) -> Tensor:
        if name in kept or name not in found:
            return kept[name] if name in kept else checkpoint.tensor(name)
        values = rows(name, slice(None))
        if sum(each.nbytes for each in kept.values()) + values.nbytes <= KEPT:
            kept[name] = values
        return values

    if checkpoint.read is not None:
        return dataclasses.replace(checkpoint, read=Reader(whole, rows))
    model = copied(checkpoint.model)
    with torch.no_grad():
        for name in found:
            model.get_parameter(name).copy_(whole(name))
    return dataclasses.replace(checkpoint, outline=model)


def _rounded(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
    """Return a checkpoint with weights rounded to a dtype but stored in fp32."""
    if dtype == torch.float32:
        return checkpoint
    outline = copied(checkpoint.outline, dtype).float()
    read = checkpoint.read
    narrow = None if read is None else Reader.of(read).then(lambda values: values.to(dtype).float())
    return dataclasses.replace(checkpoint, outline=outline, read=narrow)


def _is_large_preset(checkpoint: Checkpoint) -> bool:
    return checkpoint.read is not None and checkpoint.folder is None


def _held_parts(bundle: Bundle, model: nn.Module, *, plain: bool) -> dict[str, Quantized | Array]:
    """Return the quantised weights of a bundle, mapped into memory, by first name; if `plain`, also the others."""
    found: dict[str, Quantized | Array] = {}
    first = first_names(model)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    for role in bundle.manifest.driven:
        tensors = graph_weights(bundle.file(role))
        for name, values in tensors.items():
            stored = bundle.manifest.weights.get(name, Stored((name,)))
            whole = read_quantized(stored, values, tensors) if stored.is_quantised else None
            if whole is not None:
                for weight, rows in parts_of(stored, whole.shape[0]):
                    part = whole.rows(rows)
                    if shapes.get(first.get(weight, "")) != part.shape:
                        there = f"one of shape {shapes[first[weight]]}" if weight in first else "no such weight"
                        raise ParityError(f"the bundle holds {weight} of shape {part.shape}, the checkpoint {there}")
                    found[first[weight]] = part
            elif plain and not stored.is_quantised:
                for held in _unpack(stored, values):
                    if shapes.get(first.get(held.name, "")) == held.values.shape:
                        found[first[held.name]] = held.values
    return found
