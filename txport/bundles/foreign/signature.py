"""The inputs and outputs of a graph as its file declares them, read without the onnx package and before any runtime."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from txport.bundles.ports import Dim, Port
from txport.bundles.protobuf import VARINT, known, opened, varint
from txport.errors import BundleError

# ONNX's protobuf schema: message -> number of a field -> what that is (see bundles.graphs)
MODEL, GRAPH = {7: "graph"}, {5: "initializer", 11: "input", 12: "output"}
INITIALIZER, VALUE = {8: "name"}, {1: "name", 2: "type"}
TYPE, TENSOR, SHAPE = {1: "tensor"}, {1: "kind", 2: "shape"}, {1: "dim"}
DIM = {1: "size", 2: "symbol"}
KINDS = {  # ONNX's number of a type -> NumPy's name
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}
UNNAMED = "?"  # a dynamic dim without a name
MOST_PORTS, MOST_DIMS = 1 << 14, 16
Ports = tuple[Port, ...]


def read_signature(path: Path) -> tuple[Ports, Ports]:
    """The inputs and outputs of the graph in a file, its initializers left out; `BundleError` for what is no graph."""
    sides: dict[str, list[Port]] = {"input": [], "output": []}
    weights: set[str] = set()
    with opened(path) as content:
        for _, begin, end in known(content, 0, len(content), MODEL):
            for kind, first, last in known(content, begin, end, GRAPH):
                if kind == "initializer":
                    weights.update(_texts(content, first, last))
                else:
                    sides[kind].append(_port(content, first, last))
                if len(sides["input"]) + len(sides["output"]) - len(weights) > MOST_PORTS:
                    raise ValueError(f"it has more than {MOST_PORTS} inputs and outputs")
    inputs = tuple(port for port in sides["input"] if port.name not in weights)  # old files list weights there too
    outputs = tuple(sides["output"])
    for side in (inputs, outputs):
        if len({port.name for port in side}) < len(side):
            raise BundleError(f"{path.name} is not an ONNX file: two of its inputs or outputs have one name")
    return inputs, outputs


def _texts(content: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """The name of an initializer."""
    for _, first, last in known(content, start, end, INITIALIZER):
        yield content[first:last].decode()


def _port(content: mmap.mmap, start: int, end: int) -> Port:
    name, kind, dims = "", "", tuple[Dim, ...]()
    for field, first, last in known(content, start, end, VALUE):
        if field == "name":
            name = content[first:last].decode()
            continue
        tensors = list(known(content, first, last, TYPE))
        kind = "" if tensors else "no tensor"
        for _, begin, stop in tensors:
            for inner, a, b in known(content, begin, stop, TENSOR, {1: VARINT}):
                if inner == "kind":
                    number = varint(content, a, b)[0]
                    kind = KINDS.get(number, f"type {number}")
                else:
                    dims = tuple(_dim(content, *place) for _, *place in known(content, a, b, SHAPE))
    if len(dims) > MOST_DIMS:
        raise ValueError(f"{name!r} has {len(dims)} dims")
    return Port(name, kind, dims)


def _dim(content: mmap.mmap, start: int, end: int) -> Dim:
    found: Dim = UNNAMED
    for field, first, last in known(content, start, end, DIM, {1: VARINT}):
        found = varint(content, first, last)[0] if field == "size" else content[first:last].decode() or UNNAMED
    return found
