"""Inputs, outputs and weights that a graph file declares, read without the onnx package or a runtime."""

from __future__ import annotations

import dataclasses
import math
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from txport.bundles.graphs import DEEPEST, ENTRY, LONGEST_NAME, graph_fields, opened
from txport.errors import BundleError
from txport.system.protobuf import BYTES, VARINT, fields, known, varint
from txport.targets.ports import Dim, Port

# ONNX's number of a type -> bits of one value, and NumPy's name of the type.
TYPES = {
    1: (32, "float32"),
    2: (8, "uint8"),
    3: (8, "int8"),
    4: (16, "uint16"),
    5: (16, "int16"),
    6: (32, "int32"),
    7: (64, "int64"),
    8: (0, "string"),
    9: (8, "bool"),
    10: (16, "float16"),
    11: (64, "float64"),
    16: (16, "bfloat16"),
    21: (4, "uint4"),
    22: (4, "int4"),
}
# ONNX's protobuf schema: number of a field -> its meaning (see bundles.graphs)
INSIDE = {1: "node", 5: "tensor"}
NODE = {1: "input", 3: "name", 5: "attribute"}
BRANCHES = {6: "graph", 11: "graph"}  # of an attribute
PORTS = {5: "initializer", 11: "input", 12: "output"}
VALUE = {1: "name", 2: "type"}
TYPE = {1: "tensor"}
DENSE = {1: "kind", 2: "shape"}
SHAPE = {1: "dim"}
DIM = {1: "size", 2: "symbol"}
TENSOR = {2: "type", 8: "name", 13: "entry"}
DIMS = 1
UNNAMED = "?"  # a dynamic dim without a name
# Names that exporters make up for a weight without a name: onnx::MatMul_1234, val_12, _v_2041. A name matches in at
# most one way. Therefore matching is linear in its length, even for a malicious file.
MADE_UP = re.compile(
    r"onnx::\w+|(_?[a-z]{1,3}_\d+|\d+)(_(quantized|scales?|zero_point|Q4|bits|DQ|merged_\d+))*", re.ASCII
)
MOST_PORTS = 1 << 14
MOST_DIMS = 64
MOST_BYTES = 1 << 62
MOST_PORT_DIMS = 16
Ports = tuple[Port, ...]
Place = tuple[int, int]


def read_signature(path: Path) -> tuple[Ports, Ports]:
    """Return the inputs and outputs of a graph file, without initializers; raise `BundleError` for an invalid file."""
    sides: dict[str, list[Port]] = {"input": [], "output": []}
    weights: set[str] = set()
    with opened(path) as content:
        for kind, first, last in graph_fields(content, PORTS):
            if kind == "initializer":
                weights.add(_initializer(content, first, last).name)
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


def _port(content: mmap.mmap, start: int, end: int) -> Port:
    name = ""
    kind = ""
    dims = tuple[Dim, ...]()
    for field, first, last in known(content, start, end, VALUE):
        if field == "name":
            name = content[first:last].decode()
            continue
        tensors = list(known(content, first, last, TYPE))
        kind = "" if tensors else "no tensor"
        for _, begin, stop in tensors:
            for inner, a, b in known(content, begin, stop, DENSE, {1: VARINT}):
                if inner == "kind":
                    number = varint(content, a, b)[0]
                    kind = TYPES[number][1] if number in TYPES else f"type {number}"
                else:
                    dims = tuple(_dim(content, *place) for _, *place in known(content, a, b, SHAPE))
    if len(dims) > MOST_PORT_DIMS:
        raise ValueError(f"{name!r} has {len(dims)} dims")
    return Port(name, kind, dims)


def _dim(content: mmap.mmap, start: int, end: int) -> Dim:
    found: Dim = UNNAMED
    for field, first, last in known(content, start, end, DIM, {1: VARINT}):
        found = varint(content, first, last)[0] if field == "size" else content[first:last].decode() or UNNAMED
    return found


@dataclass(frozen=True)
class Initializer:
    """A weight of a graph: its name, NumPy's name of its type, its size in bytes, and its position in another file.

    `reader` is the name of a node that reads the weight, if the exporter made up the weight's name.
    """

    name: str
    dtype: str
    bytes: int
    place: tuple[str, int] | None = None  # file next to the graph, offset
    reader: str | None = None


def read_initializers(path: Path) -> list[Initializer]:
    """Return the initializers of a graph and its branches; raise `BundleError` if the file is not ONNX."""
    with opened(path) as content:
        found = list[Initializer]()
        readers = dict[str, str]()
        pending = [(list(graph_fields(content, INSIDE)), 0)]
        for inside, depth in pending:  # the loop appends to it
            if depth > DEEPEST:
                raise ValueError(f"its messages are more than {DEEPEST} deep")
            for kind, *place in inside:
                if kind == "tensor":
                    found.append(_initializer(content, *place))
                    continue
                reads, name, branches = _node(content, *place)
                pending += [(list(known(content, *branch, INSIDE)), depth + 2) for branch in branches]
                for each in filter(_is_made_up, reads) if name else ():
                    readers.setdefault(each, name)
    return [dataclasses.replace(each, reader=readers.get(each.name)) for each in found]


def _is_made_up(name: str) -> bool:
    return len(name) <= LONGEST_NAME and MADE_UP.fullmatch(name) is not None


def _node(content: mmap.mmap, start: int, end: int) -> tuple[list[str], str, list[Place]]:
    """Return the inputs of a node, its name, and the byte ranges of its branches."""
    reads = list[str]()
    name = ""
    branches = list[Place]()
    for kind, first, last in known(content, start, end, NODE):
        if kind == "attribute":
            branches += [(low, high) for _, low, high in known(content, first, last, BRANCHES)]
        elif kind == "name":
            name = content[first:last].decode()
        else:
            reads.append(content[first:last].decode())
    return reads, name, branches


def _initializer(content: mmap.mmap, start: int, end: int) -> Initializer:
    kind = 0
    name = ""
    entries = {}
    for inner, first, last in known(content, start, end, TENSOR, {2: VARINT}):
        if inner == "type":
            kind = varint(content, first, last)[0]
        elif inner == "name":
            name = content[first:last].decode()
        else:
            found = {key: content[a:b].decode() for key, a, b in known(content, first, last, ENTRY)}
            entries[found.get("key", "")] = found.get("value", "")
    bits, dtype = TYPES.get(kind, (0, "other"))
    size = -(-math.prod(_dims(content, start, end)) * bits // 8)
    if size > MOST_BYTES:
        raise ValueError(f"a tensor can't have {size} bytes")
    place = (entries["location"], int(entries.get("offset", 0))) if "location" in entries else None
    return Initializer(name, dtype, size, place)


def _dims(content: mmap.mmap, start: int, end: int) -> Iterator[int]:
    """Yield the dims of a tensor: one per field, or all packed in one field."""
    left = MOST_DIMS
    for number, kind, first, last in fields(content, start, end):
        if number != DIMS:
            continue
        if kind not in (VARINT, BYTES):
            raise ValueError("its dims are of another type")
        while first < last:
            dim, first = varint(content, first, last)
            left -= 1
            if left < 0:
                raise ValueError(f"a tensor has more than {MOST_DIMS} dims")
            yield dim
