"""The weights of a graph as its file names them, without reading one: for what shows how large they are."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from txport.bundles.graphs import ENTRY
from txport.bundles.protobuf import BYTES, VARINT, fields, known, opened, varint

# Bits of a number of each of ONNX's types, and what NumPy calls it.
TYPES = {
    1: (32, "float32"),
    2: (8, "uint8"),
    3: (8, "int8"),
    5: (16, "int16"),
    6: (32, "int32"),
    7: (64, "int64"),
    9: (8, "bool"),
    10: (16, "float16"),
    11: (64, "float64"),
    16: (16, "bfloat16"),
    21: (4, "uint4"),
    22: (4, "int4"),
}
GRAPH_OF_MODEL, TENSOR_OF_GRAPH, DIMS = 7, 5, 1
TENSOR = {2: "type", 8: "name", 13: "entry"}
MOST_BYTES, MOST_DIMS = 1 << 62, 64


@dataclass(frozen=True)
class Initializer:
    """A weight of a graph: its name, NumPy's name for its type, its bytes, and where it lies in another file."""

    name: str
    dtype: str
    bytes: int
    place: tuple[str, int] | None = None  # file beside the graph, offset


def read_initializers(path: Path) -> list[Initializer]:
    """The initializers of a graph, those of its branches left out; `BundleError` for what is no ONNX file."""
    with opened(path) as content:
        return list(_initializers(content))


def _initializers(content: mmap.mmap) -> Iterator[Initializer]:
    for _, start, end in known(content, 0, len(content), {GRAPH_OF_MODEL: "graph"}):
        for _, first, last in known(content, start, end, {TENSOR_OF_GRAPH: "tensor"}):
            yield _initializer(content, first, last)


def _initializer(content: mmap.mmap, start: int, end: int) -> Initializer:
    kind, name, entries = 0, "", {}
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
    """One number a field, or all in one."""
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
