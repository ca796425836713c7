"""Arrays: .npz files that are not trusted, numbers in bfloat16, and memory that is used again."""

from __future__ import annotations

import math
import weakref
import zipfile
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from txport.errors import brief, quoted
from txport.system.documents import DocumentError, require_size

Array = NDArray[Any]  # of any dtype

LARGEST = 16 << 20  # bytes of a file
LONGEST_HEADER = 1000  # characters
SMALLEST, MOST = 1 << 12, 1 << 44  # bytes of a pooled buffer


def to_bf16(array: Array) -> NDArray[np.uint16]:
    """Return the bits of numbers in bfloat16, rounded to nearest even; NumPy has no such type."""
    bits = np.array(array, np.float32, order="C").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the numbers that bits of bfloat16 mean."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Expected(NamedTuple):
    """The required kind of a member (NumPy's `i`, `f` or `b`), its number of dims, and whether NaN is an error."""

    kind: str
    dims: int
    finite: bool = True


def read_arrays(path: Path, expected: Mapping[str, Expected]) -> dict[str, Array]:
    """Return the arrays of an uncompressed .npz by name; raise `DocumentError` unless it has exactly those expected.

    Members must be uncompressed, so that no array is larger than the file, and their sizes must match their shapes.
    """
    require_size(path, LARGEST)
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            if sorted(each.filename for each in members) != sorted(f"{name}.npy" for name in expected):
                raise ValueError("its members are not those that are expected")
            return {name: _read(file, file.getinfo(f"{name}.npy"), each) for name, each in expected.items()}
    except Exception as error:  # zipfile, and NumPy's reader of headers, which parses Python, have no base for theirs
        raise DocumentError(f"{path} is damaged: {brief(error)}") from error


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo, expected: Expected) -> Array:
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError(f"{member.filename} is compressed")
    if member.file_size > LARGEST:
        raise ValueError(f"{member.filename} has {member.file_size} bytes, expected at most {LARGEST}")
    with file.open(member) as stream:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError(f"{member.filename} is not of the first version of the format")
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
        content = stream.read()
    if dtype.kind != expected.kind or len(shape) != expected.dims or is_fortran:
        kind = f"an array of kind {expected.kind!r} with {expected.dims} dims"
        raise ValueError(f"{member.filename} is {dtype} with {len(shape)} dims, expected {kind}")
    if any(dim < 0 for dim in shape) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{member.filename} has {len(content)} bytes, which are no array of shape {quoted(shape)}")
    values = np.frombuffer(content, dtype).reshape(shape)
    if dtype.kind == "f" and expected.finite and not np.isfinite(values).all():
        raise ValueError(f"{member.filename} holds NaN or infinity")
    return values


class Pool:
    """Buffers that return to the pool when their owners are collected, so that new requests need no new memory."""

    def __init__(self) -> None:
        # No lock: the garbage collector may return a buffer during `_take`, and each operation is atomic.
        self._free: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def zeros(self, owner: object, shape: tuple[int, ...], dtype: object = np.float32) -> Array:
        """Return an array of zeros, valid while `owner` exists. Old content may have NaN, and NaN times zero is NaN."""
        return self._take(owner, shape, dtype, clear=True)

    def empty(self, owner: object, shape: tuple[int, ...], dtype: object = np.float32) -> Array:
        """Return an array with arbitrary content, valid while `owner` exists."""
        return self._take(owner, shape, dtype, clear=False)

    def _take(self, owner: object, shape: tuple[int, ...], dtype: Any, *, clear: bool) -> Array:
        """Return an array from the pool; raise `MemoryError` for more than `MOST` bytes."""
        count = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        if count > MOST:
            raise MemoryError(f"an array of the shape {shape} needs {count} bytes")
        size = max(SMALLEST, 1 << (count - 1).bit_length()) if count else SMALLEST
        try:
            buffer = self._free[size].pop()
            if clear:
                buffer[:count] = 0
        except IndexError:
            buffer = np.zeros(size, np.uint8)
        weakref.finalize(owner, self._give_back, buffer).atexit = False
        array: Array = buffer[:count].view(dtype).reshape(shape)
        return array

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        self._free[buffer.size].append(buffer)


class Hold:
    """Owner of buffers: they return to the pool when it is collected."""
