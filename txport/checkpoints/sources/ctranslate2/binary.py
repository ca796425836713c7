"""`model.bin`, the file in which CTranslate2 stores the variables of a model.

All numbers are little-endian. A string is its length including the final zero byte (uint16), and its bytes. The file
has

- a version (uint32); since version 2 the name of the specification, and its revision (uint32);
- the number of variables (uint32); for each its name, rank (uint8), dims (uint32), type (uint8), bytes (uint32), data;
- since version 3 the number of aliases (uint32); for each its name, and that of the variable.

A variable of rank 0 is an attribute. Before version 4, the bytes of a number (uint8) and the number of them (uint32)
stand for the type and the bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from txport.checkpoints.weights.steps import Shape
from txport.errors import CheckpointError, quoted

VERSION = 6
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
OLD_TYPES = {4: torch.float32, 2: torch.int16, 1: torch.int8}  # by bytes
NAMED_SINCE, ALIASED_SINCE, TYPED_SINCE = 2, 3, 4  # versions
SCALE, ZERO = "_scale", "_zero"
OLD_SCALE = 1000.0  # of weights in int16 that have no scale
MOST_NAME = 1 << 10  # bytes


@dataclass(frozen=True)
class Variable:
    """The shape and type of a variable, and the offset of its data in the file."""

    shape: Shape
    type: torch.dtype
    offset: int


@dataclass(frozen=True)
class Binary:
    """The contents of a file; `names` maps every name, aliases included, to that of its variable."""

    path: Path
    version: int
    specification: str
    revision: int
    variables: Mapping[str, Variable]
    names: Mapping[str, str]
    attributes: Mapping[str, float]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of weights by name, without the scales of quantised weights."""
        found = {name: self.variables[root].shape for name, root in self.names.items()}
        scales = {name + SCALE for name in found}
        return {name: shape for name, shape in found.items() if shape and name not in scales}

    def read(self, name: str) -> Tensor:
        """Return a weight; a quantised one is dequantised."""
        root = self.names[name]
        tensor = self._data(root)
        scale = self.names.get(root + SCALE)
        if tensor.dtype not in (torch.int8, torch.int16) or (scale is None and tensor.dtype != torch.int16):
            return tensor
        if scale is None:
            return tensor.float() / OLD_SCALE
        factor = self._data(scale)
        if not factor.is_floating_point():
            raise CheckpointError(f"{self.path} holds {quoted(scale)} of type {factor.dtype}, expected floats")
        factor = factor.float()
        if factor.dim() == 1 and len(factor) == len(tensor):
            factor = factor.view(-1, *(1,) * (tensor.dim() - 1))
        elif factor.dim():
            shapes = f"{tuple(factor.shape)} for a weight of {tuple(tensor.shape)}"
            raise CheckpointError(f"{self.path} holds {quoted(scale)} of shape {shapes}")
        if not (factor != 0).all():
            raise CheckpointError(f"{self.path} holds {quoted(scale)}, by which nothing can be divided")
        return tensor.float() / factor

    def text(self, name: str, default: str) -> str:
        """Return a variable that holds the bytes of a text; raise `ValueError` if it holds something else."""
        if name not in self.names:
            return default
        return self._data(self.names[name]).to(torch.uint8).numpy().tobytes().decode()

    def _data(self, root: str) -> Tensor:
        variable = self.variables[root]
        with self.path.open("rb") as stream:
            return _data(stream, variable)


def read_binary(path: Path) -> Binary:
    """Read a `model.bin` without its weights; raise `CheckpointError` for an invalid file."""
    try:
        with path.open("rb") as stream:
            return _read(path, stream, path.stat().st_size)
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a whole model of CTranslate2: {error}") from error


def is_binary(path: Path) -> bool:
    """Return whether a file begins like those of CTranslate2: with a version, and the name of a specification."""
    try:
        with path.open("rb") as stream:
            version = _number(stream, "<I")
            return 0 < version < 1 << 8 and _string(stream).endswith("Spec")
    except (OSError, ValueError):
        return False


def _read(path: Path, stream: BinaryIO, size: int) -> Binary:
    if not 0 < (version := _number(stream, "<I")) <= VERSION:
        raise ValueError(f"its version is {version}, expected 1 to {VERSION}: convert the model again")
    specification = _string(stream) if version >= NAMED_SINCE else ""
    revision = _number(stream, "<I") if version >= NAMED_SINCE else 1
    variables: dict[str, Variable] = {}
    attributes: dict[str, float] = {}
    for _ in range(_number(stream, "<I")):
        name = _string(stream)
        if name in variables:
            raise ValueError(f"{quoted(name)} is there twice")
        variables[name] = variable = _variable(stream, name, size, version)
        if not variable.shape:
            attributes[name] = _data(stream, variable).item()
        stream.seek(variable.offset + _bytes(variable))
    names = {name: name for name in variables}
    for _ in range(_number(stream, "<I") if version >= ALIASED_SINCE else 0):
        alias = _string(stream)
        name = _string(stream)
        if name not in variables or alias in names:
            raise ValueError(f"{quoted(alias)} can't stand for {quoted(name)}")
        names[alias] = name
    if stream.read(1):
        raise ValueError("more follows where it should end")
    return Binary(path, version, specification, revision, variables, names, attributes)


def _variable(stream: BinaryIO, name: str, size: int, version: int) -> Variable:
    shape = tuple(_number(stream, "<I") for _ in range(_number(stream, "<B")))
    kind = _number(stream, "<B")
    told = _number(stream, "<I") * (1 if version >= TYPED_SINCE else kind)
    types = dict(enumerate(TYPES)) if version >= TYPED_SINCE else OLD_TYPES
    if kind not in types:
        raise ValueError(f"{quoted(name)} is of the unknown type {kind}")
    variable = Variable(shape, types[kind], stream.tell())
    if told != _bytes(variable):
        raise ValueError(f"{quoted(name)} of shape {shape} has {told} bytes, expected {_bytes(variable)}")
    if variable.offset + told > size:
        raise ValueError(f"{quoted(name)} ends behind the end of the file")
    return variable


def _bytes(variable: Variable) -> int:
    return math.prod(variable.shape) * variable.type.itemsize


def _data(stream: BinaryIO, variable: Variable) -> Tensor:
    if not _bytes(variable):
        return torch.empty(variable.shape, dtype=variable.type)
    stream.seek(variable.offset)
    data = bytearray(_bytes(variable))
    if stream.readinto(data) < len(data):  # type: ignore[attr-defined]
        raise ValueError("it ends too early")
    return torch.frombuffer(data, dtype=variable.type).reshape(variable.shape)


def _number(stream: BinaryIO, form: str) -> int:
    size = struct.calcsize(form)
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("it ends too early")
    found: int = struct.unpack(form, data)[0]
    return found


def _string(stream: BinaryIO) -> str:
    size = _number(stream, "<H")
    data = stream.read(size)
    if not 0 < size <= MOST_NAME or len(data) < size or data[-1]:
        raise ValueError("a name in it is none")
    return data[:-1].decode("utf-8")
