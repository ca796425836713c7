"""Reading protobuf: the fields of a message, by number and byte range; rejects what parsers read differently."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from types import MappingProxyType

LARGEST_FIELD = (1 << 29) - 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
SIZES = {FIXED64: 8, FIXED32: 4}  # bytes

Content = mmap.mmap | bytes


def fields(content: Content, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and wire type of each field in a message, and the byte range of its value.

    Raises `ValueError` for what is not a message.
    """
    while start < end:
        tag, start = varint(content, start, end)
        kind = tag & 7
        if not 0 < tag >> 3 <= LARGEST_FIELD:  # parsers read it differently
            raise ValueError(f"there is no field {tag >> 3}")
        if kind == VARINT:
            size = varint(content, start, end)[1] - start
        elif kind == BYTES:
            size, start = varint(content, start, end)
        elif kind in SIZES:
            size = SIZES[kind]
        else:
            raise ValueError(f"there is no field of kind {kind}")
        if start + size > end:
            raise ValueError("it is cut off, or its parts do not fit into one another")
        yield tag >> 3, kind, start, start + size
        start += size


def known(
    content: Content, start: int, end: int, schema: Mapping[int, str], kinds: Mapping[int, int] = MappingProxyType({})
) -> Iterator[tuple[str, int, int]]:
    """Yield the name and the value's byte range of each field in the schema; `kinds`: wire types other than `BYTES`.

    Raises `ValueError` for a field of another wire type, which parsers read differently.
    """
    for number, kind, first, last in fields(content, start, end):
        if number in schema:
            if kind != kinds.get(number, BYTES):
                raise ValueError(f"its field {schema[number]!r} is of another type")
            yield schema[number], first, last


def varint(content: Content, start: int, end: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the offset after it; raise `ValueError` if it is longer or cut off."""
    if start < end and (value := content[start]) < 0x80:  # most numbers
        return value, start + 1
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
