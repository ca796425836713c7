"""The ONNX files of a bundle: the files that they refer to, their operators and their tensors."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txport.errors import BundleError, brief, quoted
from txport.system.arrays import Array
from txport.system.protobuf import VARINT, known, varint

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

# Fields of ONNX's protobuf schema with names of files and operators: message -> field number -> meaning.
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset", 14: "metadata", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {1: "input", 4: "operator", 5: "attribute", 7: "domain"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
OPSET = {1: "domain", 2: "version"}
ENTRY = {1: "key", 2: "value"}
OPERATOR, INPUT, DOMAIN = "operator", "input", "domain"
STANDARD = ("", "ai.onnx")  # names of the standard's domain
KINDS = ("location", OPERATOR, "opset", "gap", "metadata", "function")  # of what is named
GIVEN = {"tensor": {8: "name"}, "value": {1: "name"}, "sparse": {1: "tensor"}}  # names of weights and inputs
READ = {1: INPUT, 2: "output"}
LONGEST_NAME = 200  # characters
DEEPEST = 100  # messages in messages: protobuf's own limit


class Outline(NamedTuple):
    """The names in a graph file: files with its tensors, operators of its nodes, opsets and metadata.

    An opset is a domain ("" for the standard one) and a version.
    """

    files: frozenset[str]
    operators: Counter[str]  # counts, branches included; names have their domain unless it is the standard one
    opsets: frozenset[tuple[str, int]]
    gaps: frozenset[str]  # operators of nodes with an omitted input
    metadata: Mapping[str, str]
    functions: int = 0  # number of local functions, which runtimes expand at each call, nested ones without a limit

    @property
    def names(self) -> frozenset[str]:
        """The operators without their domains."""
        return frozenset(name.rpartition(".")[2] for name in self.operators)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[mmap.mmap]:
    """Memory-map a graph file; raise `BundleError` if it is empty, or if the block finds that it is not a graph."""
    if path.stat().st_size == 0:
        raise BundleError(f"{path.name} is not an ONNX file: it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            yield content
        except BundleError:
            raise
        except (KeyError, ValueError) as error:
            raise BundleError(f"{path.name} is not an ONNX file: {error}") from error


def read_outline(path: Path) -> Outline:
    """Read the names in a graph, its branches and functions; raise `BundleError` if it is not an ONNX file.

    The protobuf is parsed here, because names must be checked before a runtime opens the file, and because the onnx
    package is not installed where bundles run.
    """
    found: dict[str, Counter[Any]] = {kind: Counter() for kind in KINDS}
    with opened(path) as content:
        for kind, name in _names(content):
            found[kind][name] += 1
    metadata: dict[str, str] = dict(found["metadata"].keys())
    if len(metadata) < found["metadata"].total():  # readers do not agree on which one counts
        raise BundleError(f"{path.name} is not an ONNX file: its metadata has a key twice")
    files, opsets, gaps = (frozenset(found[kind]) for kind in ("location", "opset", "gap"))
    return Outline(files, found[OPERATOR], opsets, gaps, metadata, len(found["function"]))


def require_order(path: Path) -> None:
    """Raise `BundleError` if the nodes are not in topological order: some runtimes crash at a cycle.

    Branches are not checked.
    """
    with opened(path) as content:
        missing = _out_of_order(content)
    if missing is not None:
        raise BundleError(
            f"{path.name}: a node reads {quoted(missing)}, which nothing before it gives; export it again"
        )


def _out_of_order(content: mmap.mmap) -> str | None:
    """Return the first name that a node reads before anything outputs it, or None."""
    parts = list(graph_fields(content, {1: "node", 5: "tensor", 11: "value", 15: "sparse"}))
    given = {b""} | {name for kind, *place in parts for name in _given(content, kind, *place)}
    for _, start, end in (each for each in parts if each[0] == "node"):
        names = [(kind, content[low:high]) for kind, low, high in known(content, start, end, READ)]
        for kind, name in names:
            if kind == INPUT and name not in given:
                return name.decode(errors="replace")
        given |= {name for kind, name in names if kind != INPUT}
    return None


def graph_fields(content: mmap.mmap, schema: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
    """Yield the meaning, start and end of each field of a model's graph that is in the schema."""
    for _, start, end in known(content, 0, len(content), {7: "graph"}):
        yield from known(content, start, end, schema)


def _given(content: mmap.mmap, kind: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the names of weights and of inputs of the graph."""
    for inner, low, high in known(content, start, end, GIVEN.get(kind, {})):
        if inner == "name":
            yield content[low:high]
        else:
            yield from _given(content, inner, low, high)


def _names(content: mmap.mmap) -> Iterator[tuple[str, Any]]:
    """Yield the kind of each name, and the name."""
    pending = [("model", 0, len(content), 0)]
    while pending:
        message, start, end, depth = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"its messages are more than {DEEPEST} deep")
        given = {OPERATOR: "", INPUT: "whole", DOMAIN: ""}
        for inner, first, last in known(content, start, end, MESSAGES[message]):
            if inner in (OPERATOR, INPUT, DOMAIN):
                given[inner] = content[first:last].decode() if inner != INPUT or first == last else given[inner]
            elif inner == "opset":
                fields = {name: place for name, *place in known(content, first, last, OPSET, {2: VARINT})}
                domain = content[slice(*fields["domain"])].decode() if "domain" in fields else ""
                yield inner, (domain, varint(content, *fields["version"])[0] if "version" in fields else 0)
            elif inner == "metadata":
                key_value = {name: content[a:b].decode() for name, a, b in known(content, first, last, ENTRY)}
                yield inner, (key_value.get("key", ""), key_value.get("value", ""))
            elif inner == "entry":
                entry = {name: content[a:b] for name, a, b in known(content, first, last, ENTRY)}
                if entry.get("key") == b"location":
                    yield "location", entry.get("value", b"").decode()
            else:
                if inner == "function":
                    yield inner, first
                pending.append((inner, first, last, depth + 1))
        if message == "node":
            domain = "" if given[DOMAIN] in STANDARD else f"{given[DOMAIN]}."
            yield OPERATOR, domain + given[OPERATOR]
            if not given[INPUT]:
                yield "gap", given[OPERATOR]


def read_model(path: Path, *, weights: bool = True) -> onnx.ModelProto:
    """Read a graph with all its tensors or, without `weights`, with those in the file itself.

    Needs onnx. Raises `BundleError` for a file without a graph, and for tensors whose data is missing. Links are
    followed, because hashes are those of their targets.
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
    """Read a graph with onnx_ir, which needs onnx; weights in other files are not loaded unless a file is a link.

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


Maps = dict[tuple[object, ...], Array]  # (file, offset, dtype, dims) -> memory-mapped array


def mapped(tensor: onnx.TensorProto, path: Path, maps: Maps) -> Array:
    """Return the values of a tensor of a graph at `path`; those in another file are memory-mapped, read-only.

    Arrays that are already in `maps` are reused. Numbers of 4 bits become bytes, which are not mapped. Needs onnx.
    Raises `BundleError` if the data is missing.
    """
    import onnx

    in_halves = tensor.data_type == onnx.TensorProto.UINT4
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        values: Array = onnx.numpy_helper.to_array(tensor)
        return values.astype(np.uint8) if in_halves else values
    try:
        file, offset, length = _place(tensor, path)
        dtype = np.dtype(np.uint8) if in_halves else onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = math.prod(tensor.dims)
        if length != (-(-count // 2) if in_halves else dtype.itemsize * count):
            raise ValueError(f"{tensor.name} has {length} bytes, which its dims {list(tensor.dims)} do not take")
        if not length:
            return np.zeros(tuple(tensor.dims), dtype)
        if in_halves:
            pairs = np.fromfile(file, np.uint8, length, offset=offset)
            return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1)[:count].reshape(tuple(tensor.dims))
        place = (file, offset, dtype, tuple(tensor.dims))
        if place not in maps:
            maps[place] = np.memmap(file, dtype, "r", offset, tuple(tensor.dims)).view(np.ndarray)
        return maps[place]
    except (KeyError, OSError, ValueError) as error:
        raise BundleError(f"{path} is not a whole ONNX file: {brief(error)}") from error


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph and its branches."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for branch in (attribute.g, *attribute.graphs):
                yield from _tensors(branch)


def _take_in(tensor: Any, path: Path) -> None:
    """Load the data of a tensor from its external file into the tensor."""
    file, offset, length = _place(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(length)
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _place(tensor: Any, path: Path) -> tuple[Path, int, int]:
    """Return the external file of a tensor, its offset and its length in bytes."""
    entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    file = path.parent / contained(entries["location"])
    offset = int(entries.get("offset", 0))
    size = file.stat().st_size
    length = int(entries.get("length", size - offset))
    if not 0 <= offset <= offset + length <= size:
        raise ValueError(f"{tensor.name} lies beyond the end of {file.name}")
    return file, offset, length


def is_beside(name: str) -> bool:
    """Return whether a name is that of a file in the same folder."""
    try:
        return "/" not in contained(name)
    except ValueError:
        return False


def contained(name: str) -> str:
    """Return a relative file name unchanged; raise `ValueError` if it could lead out of the folder."""
    path = PurePosixPath(name)
    odd = len(name) > LONGEST_NAME or not name.isprintable() or any(each in name for each in '\\:*?"<>|')
    if odd or not name or path.is_absolute() or path.as_posix() != name or ".." in path.parts:
        raise ValueError(f"{quoted(name)} is not the plain name of a file in the bundle")
    return name
