"""The graphs of a bundle as ONNX files: which other files they read, and their content."""

from __future__ import annotations

import logging
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.errors import BundleError, brief, quoted

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

# Where ONNX's protobuf schema names files and operators: message -> number of a field -> what that is.
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {1: "input", 4: "operator", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
OPSET, ENTRY = {1: "domain", 2: "version"}, {1: "key", 2: "value"}
OPERATOR, INPUT = "operator", "input"
LARGEST_FIELD = (1 << 29) - 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
LONGEST_NAME = 200  # characters
DEEPEST = 100  # messages in messages: protobuf's own limit


class Outline(NamedTuple):
    """What a graph file names: the files from which it takes tensors, the operators of its nodes, and their opsets.

    An opset is a domain, "" for the standard's, and a version.
    """

    files: frozenset[str]
    operators: frozenset[str]
    opsets: frozenset[tuple[str, int]]
    gaps: frozenset[str]  # operators of nodes that leave an input out


def read_outline(path: Path) -> Outline:
    """What a graph names, those of its branches and functions too; `BundleError` for what is no ONNX file.

    It reads the protobuf itself: the runtimes that open such files must not be the first to see their names, and the
    onnx package is not there where bundles run.
    """
    if path.stat().st_size == 0:
        raise BundleError(f"{path.name} is not an ONNX file: it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found: dict[str, set[Any]] = {kind: set() for kind in ("location", OPERATOR, "opset", "gap")}
        try:
            for kind, name in _names(content):
                found[kind].add(name)
        except ValueError as error:
            raise BundleError(f"{path.name} is not an ONNX file: {error}") from error
    return Outline(*(frozenset(found[kind]) for kind in ("location", OPERATOR, "opset", "gap")))


def _names(content: mmap.mmap) -> Iterator[tuple[str, Any]]:
    """The kind of each name and the name."""
    pending = [("model", 0, len(content), 0)]
    while pending:
        message, start, end, depth = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"its messages are more than {DEEPEST} deep")
        given = {OPERATOR: "", INPUT: "whole"}
        for inner, first, last in known_fields(content, start, end, MESSAGES[message]):
            if inner in (OPERATOR, INPUT):
                given[inner] = content[first:last].decode() if inner == OPERATOR or first == last else given[inner]
            elif inner == "opset":
                fields = {name: place for name, *place in known_fields(content, first, last, OPSET, {2: VARINT})}
                domain = content[slice(*fields["domain"])].decode() if "domain" in fields else ""
                yield inner, (domain, read_varint(content, *fields["version"])[0] if "version" in fields else 0)
            elif inner == "entry":
                entry = {name: content[a:b] for name, a, b in known_fields(content, first, last, ENTRY)}
                if entry.get("key") == b"location":
                    yield "location", entry.get("value", b"").decode()
            else:
                pending.append((inner, first, last, depth + 1))
        if message == "node":
            yield OPERATOR, given[OPERATOR]
            if not given[INPUT]:
                yield "gap", given[OPERATOR]


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The number and the wire type of each field in a message, and where its value lies."""
    while start < end:
        tag, start = read_varint(content, start, end)
        kind, size = tag & 7, {FIXED64: 8, FIXED32: 4}.get(tag & 7, 0)
        if not 0 < tag >> 3 <= LARGEST_FIELD:  # readers do not agree on what it is
            raise ValueError(f"there is no field {tag >> 3}")
        if kind == VARINT:
            size = read_varint(content, start, end)[1] - start
        elif kind == BYTES:
            size, start = read_varint(content, start, end)
        elif kind not in (FIXED64, FIXED32):
            raise ValueError(f"there is no field of kind {kind}")
        if start + size > end:
            raise ValueError("it is cut off, or its parts do not fit into one another")
        yield tag >> 3, kind, start, start + size
        start += size


def known_fields(
    content: mmap.mmap, start: int, end: int, schema: Mapping[int, str], kinds: Mapping[int, int] = MappingProxyType({})
) -> Iterator[tuple[str, int, int]]:
    """What each field of a message is that the schema knows, and where its value lies: bytes, unless `kinds` says else.

    `ValueError` for one of another wire type: readers do not agree on what it says.
    """
    for number, kind, first, last in _fields(content, start, end):
        if number in schema:
            if kind != kinds.get(number, BYTES):
                raise ValueError(f"its field {schema[number]!r} is of another type")
            yield schema[number], first, last


def read_varint(content: mmap.mmap, start: int, end: int) -> tuple[int, int]:
    """A number of protobuf's that begins at `start`, and where it ends; `ValueError` for none."""
    value = 0
    for shift in range(0, 70, 7):
        if start >= end:
            raise ValueError("it is cut off")
        byte = content[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
    raise ValueError("it has a number of more than 64 bits")


def read_model(path: Path, *, weights: bool = True) -> onnx.ModelProto:
    """A graph with all its tensors in place, or, without `weights`, with those that lie in the file itself.

    Needs onnx. Raises `BundleError` for a file that holds no graph, or tensors that lie nowhere. Links are followed:
    what counts is the hash of what they lead to.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
        if weights:
            for tensor in _tensors(model.graph):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    _take_in(tensor, path)
    except (DecodeError, KeyError, OSError, ValueError) as error:
        raise BundleError(f"{path} is not a whole ONNX file: {brief(error)}") from error
    return model


def read_ir(path: Path) -> ir.Model:
    """A graph as onnx_ir holds it, which needs onnx; weights in other files stay there, unless these are links.

    ONNX Runtime follows no links from a graph in memory. Raises `BundleError`.
    """
    import onnx_ir

    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of what is found to be wrong anyway
    try:
        if any((path.parent / name).is_symlink() for name in read_outline(path).files):
            return onnx_ir.from_proto(read_model(path))
        return onnx_ir.load(path)
    except BundleError:
        raise
    except Exception as error:  # it has none of its own for what it can't read
        raise BundleError(f"{path} is not a whole ONNX file: {brief(error)}") from error


Maps = dict[tuple[Any, ...], NDArray[Any]]  # what lies where in files, mapped into memory


def mapped(tensor: onnx.TensorProto, path: Path, maps: Maps) -> NDArray[Any]:
    """The numbers of a tensor of a graph at `path`: those in another file are mapped into memory, read-only.

    What is in `maps` already is the same array again. Needs onnx. Raises `BundleError` for what lies nowhere.
    """
    import onnx

    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    try:
        file, offset, length = _place(tensor, path)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if length != dtype.itemsize * math.prod(tensor.dims):
            raise ValueError(f"{tensor.name} has {length} bytes, which its dims {list(tensor.dims)} do not take")
        if not length:
            return np.zeros(tuple(tensor.dims), dtype)
        place = (file, offset, dtype, tuple(tensor.dims))
        if place not in maps:
            maps[place] = np.memmap(file, dtype, "r", offset, tuple(tensor.dims)).view(np.ndarray)
        return maps[place]
    except (KeyError, OSError, ValueError) as error:
        raise BundleError(f"{path} is not a whole ONNX file: {brief(error)}") from error


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors that a graph and its branches hold."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for branch in (attribute.g, *attribute.graphs):
                yield from _tensors(branch)


def _take_in(tensor: Any, path: Path) -> None:
    """Put the data of a tensor where those of others lie."""
    file, offset, length = _place(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(length)
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _place(tensor: Any, path: Path) -> tuple[Path, int, int]:
    """The file in which a tensor lies, from where on, and how many bytes it has."""
    entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    file = path.parent / contained(entries["location"])
    offset, length = int(entries.get("offset", 0)), int(entries["length"])
    if not 0 <= offset <= offset + length <= file.stat().st_size:
        raise ValueError(f"{tensor.name} lies beyond the end of {file.name}")
    return file, offset, length


def contained(name: str) -> str:
    """A name of a file under some folder, if it is one; `ValueError` for one that may lead elsewhere."""
    path = PurePosixPath(name)
    odd = len(name) > LONGEST_NAME or not name.isprintable() or any(each in name for each in '\\:*?"<>|')
    if odd or not name or path.is_absolute() or path.as_posix() != name or ".." in path.parts:
        raise ValueError(f"{quoted(name)} is not the plain name of a file in the bundle")
    return name
