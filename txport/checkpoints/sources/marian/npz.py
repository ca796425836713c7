"""Reading untrusted NumPy `.npz` files: no pickles, and no array larger than its file states."""

from __future__ import annotations

import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from txport.errors import CheckpointError, OutOfMemoryError, brief, quoted
from txport.system import memory
from txport.system.arrays import Array

ENDING = ".npy"
MOST_PACKED = 100  # limit of size / file size; weights hardly compress
BROKEN = (
    *(OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error),
    *(SyntaxError, tokenize.TokenError),  # of a .npy header, which is a Python literal
)


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a file; raise `CheckpointError` if it is not a `.npz` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(ENDING) for name in archive.namelist()]
    except BROKEN as error:
        raise CheckpointError(f"{path} is not a whole .npz file: {brief(error)}") from error


def read_npz(path: Path, wanted: Container[str] | None = None) -> dict[str, Array]:
    """Return the arrays of a file by name, or only those in `wanted`; raise `CheckpointError` for an invalid file."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [each for each in archive.infolist() if _is_wanted(each, wanted)]
            size = sum(each.file_size for each in entries)
            packed = path.stat().st_size
            if size > MOST_PACKED * packed:
                raise ValueError(f"its {packed} bytes unfold to {size}, the most is {MOST_PACKED} times as many")
            memory.require(size, f"reading {path}")
            found = dict(_arrays(archive, entries))
    except OutOfMemoryError:
        raise
    except BROKEN as error:
        raise CheckpointError(f"{path} is not a whole .npz file: {brief(error)}") from error
    if len(found) < len(entries):
        raise CheckpointError(f"{path} holds an array twice")
    return found


def _is_wanted(entry: zipfile.ZipInfo, wanted: Container[str] | None) -> bool:
    return wanted is None or entry.filename.removesuffix(ENDING) in wanted


def _arrays(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> Iterator[tuple[str, Array]]:
    for entry in entries:
        with archive.open(entry) as stream:
            yield entry.filename.removesuffix(ENDING), _array(stream, entry)


def _array(stream: IO[bytes], entry: zipfile.ZipInfo) -> Array:
    """Return one array; raise `ValueError` if its header and its size do not agree."""
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"{quoted(entry.filename)} is of version {version} of .npy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about headers written by Python 2
        shape, is_fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError(f"{quoted(entry.filename)} holds Python objects, which may be code")
    told = math.prod(shape) * dtype.itemsize
    given = entry.file_size - stream.tell()
    if told != given:
        raise ValueError(f"{quoted(entry.filename)} has {given} bytes, expected {told} for the shape {shape}")
    return np.frombuffer(stream.read(), dtype).reshape(shape, order="F" if is_fortran else "C")
