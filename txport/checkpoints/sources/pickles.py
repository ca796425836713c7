"""Weights in pickles of `torch.save`: only tensors are read, and files with other objects are refused."""

from __future__ import annotations

import logging
import re
import string
import warnings
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, brief, quoted
from txport.system.terminal import one_line

CODE = re.compile(r"(?:GLOBAL|class) ([\w.]+)")
SAVE = "save its tensors alone: safetensors.torch.save_file(model.state_dict(), ...)"
WHICH = "say which: at = {} in txport.toml, `txport import --at` for a draft"
KEYS = 8  # named in an error

logger = logging.getLogger(__name__)


def read_pickle(path: Path, at: str = "") -> Weights:
    """Return the tensors of a file that `torch.save` wrote; their data stays on disk until it is read.

    They may be in a dict in the file: `at` is its path of keys, separated by dots, and is unnecessary if only one dict
    has tensors. Raises `CheckpointError` for a file that can't be read, or that has anything but tensors and plain
    values, which might run code.
    """
    values = read_values(path)
    tensors = _tensors(path, values, at)
    strange = [name for name, tensor in tensors.items() if not _is_plain(tensor)]
    if strange:
        raise CheckpointError(f"{path} holds {quoted(strange[0])}, which is sparse or quantised; {SAVE}")
    _warn(path)

    def read(name: str) -> Tensor:
        if is_repeated(tensors[name]):
            raise CheckpointError(f"{path} holds {quoted(name)}, which repeats few numbers many times; {SAVE}")
        return tensors[name]

    return Weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, read)


@cache  # once per file
def _warn(path: Path) -> None:
    told = one_line(str(path))
    logger.warning("%s is a pickle, of which only tensors are read; `txport import` writes safetensors of it", told)


def is_repeated(tensor: Tensor) -> bool:
    """Return whether a tensor has more elements than stored in its file: strides may repeat elements."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def read_values(path: Path) -> object:
    """Return the contents of a pickle of tensors and plain values."""
    try:
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _require_plain(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are refused
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=is_archive)
    except CheckpointError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # untrusted data can cause any error
        if found := CODE.search(str(error)):
            held = f"it holds {found[1]}, which may run code; {SAVE}"
        else:  # do not repeat PyTorch's advice to load the file with its code
            reason = brief(error) if str(error) and "weights_only" not in str(error) else type(error).__name__
            kind = kind_of(path, but=SAVED)
            held = f"it is not a whole file of tensors ({f'it is {kind}' if kind else reason})"
        raise CheckpointError(f"{path} is refused: {held}") from error


def _require_plain(path: Path) -> None:
    """Raise `CheckpointError` for a compressed archive, whose contents could be of any size."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise CheckpointError(f"{path} is refused: it is compressed, as torch.save never writes it")


def _tensors(path: Path, values: Any, at: str) -> dict[str, Tensor]:
    """Return the tensors of the dict at `at`, or of the only dict that has some."""
    for key in at.split(".") if at else ():
        if not isinstance(values, Mapping) or key not in values:
            there = ", ".join(quoted(each) for each in list(values)[:KEYS]) if isinstance(values, Mapping) else "none"
            raise CheckpointError(f"{path} has no {quoted(key)} of at = {quoted(at)}; its keys there: {there}")
        values = values[key]
    holders = _holders(values) if isinstance(values, Mapping) and not at else []
    if holders and _has_tensors(values):
        beside = f"tensors beside a dict of tensors, {quoted(holders[0])}"
        raise CheckpointError(f"{path} has {beside}; {WHICH.format(quoted(holders[0]))}")
    if isinstance(values, Mapping) and not _has_tensors(values):
        holders = _holders(values)
        if len(holders) > 1:
            names = " and ".join(map(quoted, holders[:KEYS]))
            raise CheckpointError(f"{path} has tensors in {names}; {WHICH.format(quoted(holders[0]))}")
        values = values[holders[0]] if holders else {}
    if not isinstance(values, Mapping) or not values:
        raise CheckpointError(f"{path} holds no tensors by name; {SAVE}")
    return {str(name): tensor.detach() for name, tensor in values.items() if isinstance(tensor, Tensor)}


def _holders(values: Mapping[Any, object]) -> list[object]:
    """Return the keys of dicts that have tensors."""
    return [key for key, each in values.items() if isinstance(each, Mapping) and _has_tensors(each)]


def _has_tensors(values: Mapping[object, object]) -> bool:
    return any(isinstance(each, Tensor) for each in values.values())


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"


# ------------------------------------------------------------------------------------------------ other files

# What a file is that should have weights and has none, by its first bytes.
BEGINS = {
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` downloads the file",
    b"<": "a page of HTML or XML, such as a login page; download the file again",
    b"{": "JSON, such as the error message of a server; download the file again",
    b"GGUF": "GGUF, which is not read; take the folder that it was made from",
    b"PK\x03\x04": "a ZIP archive; if torch.save wrote it, name it pytorch_model.bin, otherwise unpack it",
    b"\x80": "a pickle; if torch.save wrote it, name it pytorch_model.bin",
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"BZh": "compressed with bzip2; unpack it",
    b"\xfd7zXZ": "compressed with xz; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; unpack it",
    b"\x89PNG": "an image",
    b"\x89HDF": "HDF5, as Keras writes it; save the model with PyTorch (from_tf=True, save_pretrained)",
}
WRITTEN = frozenset(string.printable.encode())  # bytes of plain text
SAVED = (b"PK\x03\x04", b"\x80")  # files that torch.save writes begin so
TAR, TAR_OFFSET = b"ustar", 257


def kind_of(path: Path, *, but: tuple[bytes, ...] = ()) -> str:
    """Return what a file is, with advice; an empty string if that is unknown, or if it begins with one of `but`."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(TAR_OFFSET + len(TAR))
    except OSError:
        return ""
    if not begin:
        return "empty; download or save it again"
    if begin[TAR_OFFSET:] == TAR:
        return "a tar archive; unpack it"
    if begin.startswith(but):
        return ""
    text = begin.lstrip()
    kinds = (kind for mark, kind in BEGINS.items() if begin.startswith(mark) or text.startswith(mark))
    return next(kinds, "text, and no weights" if set(begin) <= WRITTEN else "")
