"""Reading protobuf: the fields of a message, by number and byte range; rejects what parsers read differently."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from txport.errors import BundleError

LARGEST_FIELD = (1 << 29) - 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types


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


def fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and wire type of each field in a message, and the position of its value."""
    while start < end:
        tag, start = varint(content, start, end)
        kind = tag & 7
        size = {FIXED64: 8, FIXED32: 4}.get(tag & 7, 0)
        if not 0 < tag >> 3 <= LARGEST_FIELD:  # parsers read it differently
            raise ValueError(f"there is no field {tag >> 3}")
        if kind == VARINT:
            size = varint(content, start, end)[1] - start
        elif kind == BYTES:
            size, start = varint(content, start, end)
        elif kind not in (FIXED64, FIXED32):
            raise ValueError(f"there is no field of kind {kind}")
        if start + size > end:
            raise ValueError("it is cut off, or its parts do not fit into one another")
        yield tag >> 3, kind, start, start + size
        start += size


def known(
    content: mmap.mmap, start: int, end: int, schema: Mapping[int, str], kinds: Mapping[int, int] = MappingProxyType({})
) -> Iterator[tuple[str, int, int]]:
    """Yield the name and the value's byte range of each field in the schema; `kinds`: wire types other than `BYTES`.

    Raises `ValueError` for a field of another wire type, which parsers read differently.
    """
    for number, kind, first, last in fields(content, start, end):
        if number in schema:
            if kind != kinds.get(number, BYTES):
                raise ValueError(f"its field {schema[number]!r} is of another type")
            yield schema[number], first, last


def varint(content: mmap.mmap, start: int, end: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the offset after it; raise `ValueError` if it is longer or cut off."""
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
