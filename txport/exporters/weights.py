"""The one file that holds the weights of all graphs of a bundle, each once, and what comes out of it again."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import read_model
from txport.errors import ParityError
from txport.exporters.cpu.quantize import Quantized, dequantize, steps
from txport.models.checkpoint import Checkpoint

Array = NDArray[Any]

FILE = "weights.bin"
NORMS = ("LayerNormalization", "RMSNormalization")
INLINE_BELOW = 256  # bytes; what shape inference reads stays in the graph
PAGE = 4096  # a tensor of several pages starts on one, so that it can be mapped into memory


def share_weights(models: dict[str, ir.Model], folder: Path) -> dict[str, dict[str, Any]]:
    """Write the weights of all graphs to `folder`, equal ones once, and let the graphs refer to them.

    -> those that have one name in several graphs, and where they lie, so that sessions can hold them once.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    places: dict[tuple[str, str], int] = {}
    with (folder / FILE).open("wb") as file:
        for model in models.values():
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < INLINE_BELOW:
                    continue
                content = tensor.tobytes()
                key = (hashlib.sha256(content).hexdigest(), str(tensor.dtype))
                if key not in places:
                    file.write(bytes(-file.tell() % (PAGE if len(content) >= PAGE else 64)))
                    places[key] = file.tell()
                    file.write(content)
                found.setdefault(str(value.name), []).append(
                    {
                        "file": f"{folder.name}/{FILE}",
                        "offset": places[key],
                        "dtype": tensor.dtype.numpy().name,
                        "dims": list(tensor.shape.numpy()),
                    }
                )
                value.const_value = ir.ExternalTensor(
                    FILE,
                    places[key],
                    len(content),
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=str(value.name),
                    base_dir=folder,
                )
    return {name: each[0] for name, each in found.items() if len(each) > 1 and all(one == each[0] for one in each)}


@dataclass(frozen=True)
class Held:
    """A weight as a graph holds it, under the checkpoint's name; quantised ones with their form and steps."""

    name: str
    values: Array
    form: Form | None = None
    steps: Array | None = None


def graph_weights(path: Path) -> dict[str, Array]:
    """Every tensor that a graph holds, by name: initializers and constants, those of its branches too."""
    return dict(_tensors(read_model(path).graph))


def graph_epsilons(path: Path) -> list[tuple[str, float]]:
    """The name of the weight of each norm of a graph, and the norm's epsilon."""
    graph = read_model(path).graph
    norms = [node for node in graph.node if node.op_type in NORMS]
    found = [
        (node.input[1], next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)) for node in norms
    ]
    return found + list(_plain_epsilons(graph))


def _plain_epsilons(graph: onnx.GraphProto) -> Iterator[tuple[str, float]]:
    """Those of norms in plain operators: x / Sqrt(mean + epsilon) * weight, or x / (Sqrt(mean) + epsilon) * weight."""
    made = {node.output[0]: node for node in graph.node}
    held = dict(_tensors(graph))
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


def _tensors(graph: onnx.GraphProto, place: str = "") -> Iterator[tuple[str, Array]]:
    for tensor in graph.initializer:
        yield place + tensor.name, onnx.numpy_helper.to_array(tensor)
    for number, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield f"{place}{node.output[0]}", onnx.numpy_helper.to_array(attribute.t)
            elif attribute.type == onnx.AttributeProto.FLOATS:
                yield f"{place}{node.output[0]}", np.array(attribute.floats, np.float32)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g, f"{place}{number}.{attribute.name}/")


def held_weights(initializers: Mapping[str, Array], table: Mapping[str, Stored]) -> Iterator[Held]:
    """The weights among the tensors of a graph, dequantised and unpacked; `table` says what they are."""
    for name, values in initializers.items():
        stored = table.get(name, Stored((name,)))
        if stored.form is None or not stored.is_quantised:
            yield from _unpack(stored, values)
        elif (scales := read_scales(stored, initializers)) is not None:
            quantized = Quantized(stored.form, values, scales)
            yield from _unpack(stored, dequantize(quantized), steps(quantized))


def read_scales(stored: Stored, tensors: Mapping[str, Array]) -> Array | None:
    """The scales of a stored matrix among the tensors of a graph, those of a lookup if it has no others; else None."""
    if stored.scales is not None and stored.scales in tensors:
        return tensors[stored.scales]
    lookup = tensors.get(stored.lookup_scales) if stored.lookup_scales else None
    return None if lookup is None else lookup[..., 0]


def _unpack(stored: Stored, values: Array, sizes: Array | None = None) -> Iterator[Held]:
    count = len(stored.weights)
    places: Any = count if stored.sizes is None else np.cumsum(stored.sizes)[:-1]
    parts = np.split(values, places) if count > 1 else [values]
    each = np.split(sizes, places) if sizes is not None and count > 1 else [sizes] * count
    form = stored.form if stored.is_quantised else None
    for part, array, size in zip(stored.weights, parts, each, strict=True):
        yield Held(part, array, form, size)


def holding(bundle: Bundle, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the weights that a quantised bundle holds in their place; any other checkpoint as it is."""
    if not bundle.manifest.quantization:
        return checkpoint
    model = copy.deepcopy(checkpoint.model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for role in bundle.manifest.graphs:
            for held in held_weights(graph_weights(bundle.file(role)), bundle.manifest.weights):
                if held.form is not None:
                    _replace(held, parameters)
    return dataclasses.replace(checkpoint, model=model)


def _replace(held: Held, parameters: Mapping[str, torch.Tensor]) -> None:
    parameter = parameters.get(held.name)
    if parameter is None or parameter.shape != held.values.shape:
        there = "no such weight" if parameter is None else f"one of shape {tuple(parameter.shape)}"
        raise ParityError(f"the bundle holds {held.name} of shape {held.values.shape}, the checkpoint {there}")
    parameter.copy_(torch.from_numpy(held.values))
