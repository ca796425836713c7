"""Weights in pickles, as `torch.save` writes them: only tensors are read, and what holds more is refused."""

from __future__ import annotations

import logging
import re
import warnings
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txport.errors import CheckpointError, brief, quoted
from txport.models.weights.values import Weights
from txport.system.terminal import one_line

CODE = re.compile(r"(?:GLOBAL|class) ([\w.]+)")
SAVE = "save its tensors alone: safetensors.torch.save_file(model.state_dict(), ...)"
WHICH = "say which: at = {} in txport.toml, --at for a draft"
KEYS = 8  # in an error

logger = logging.getLogger(__name__)


def read_pickle(path: Path, at: str = "") -> Weights:
    """The tensors of a file that `torch.save` wrote; their data stays on disk until it is read.

    They may lie in a dict in the file: `at` names it by its keys, with dots between them, and is not needed where only
    one holds tensors. Raises `CheckpointError` for a file that holds anything but tensors and plain values, which
    might run code, and for one that can't be read.
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


@cache  # once for a file, however often it is read
def _warn(path: Path) -> None:
    told = one_line(str(path))
    logger.warning("%s is a pickle, of which only tensors are read; `txport import` writes safetensors of it", told)


def is_repeated(tensor: Tensor) -> bool:
    """Whether a tensor has more numbers than its file holds of it: strides may see each of them many times."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def read_values(path: Path) -> Any:
    """What a pickle holds, of tensors and plain values."""
    try:
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _require_plain(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused then
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=is_archive)
    except CheckpointError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # a stranger's bytes, read by a machine for bytes: any error may come
        if found := CODE.search(str(error)):
            held = f"it holds {found[1]}, which may run code; {SAVE}"
        else:  # PyTorch's own advice, to read it with its code, is none to give
            reason = brief(error) if str(error) and "weights_only" not in str(error) else type(error).__name__
            held = f"it is not a whole file of tensors ({reason})"
        raise CheckpointError(f"{path} is refused: {held}") from error


def _require_plain(path: Path) -> None:
    """Raise `CheckpointError` for an archive that is compressed, and might grow without end."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise CheckpointError(f"{path} is refused: it is compressed, as torch.save never writes it")


def _tensors(path: Path, values: Any, at: str) -> dict[str, Tensor]:
    """The tensors of the dict that `at` names, or of the only one that holds some."""
    for key in at.split(".") if at else ():
        if not isinstance(values, Mapping) or key not in values:
            there = ", ".join(quoted(each) for each in list(values)[:KEYS]) if isinstance(values, Mapping) else "none"
            raise CheckpointError(f"{path} has no {quoted(key)} of at = {quoted(at)}; its keys there: {there}")
        values = values[key]
    holders = _holders(values) if isinstance(values, Mapping) and not at else []
    if holders and _has_tensors(values):
        beside = f"tensors beside a dict of tensors, {quoted(holders[0])}"
        raise CheckpointError(
            f"{path} has {beside}; say which: at = {quoted(holders[0])} in txport.toml, --at for a draft"
        )
    if isinstance(values, Mapping) and not _has_tensors(values):
        holders = _holders(values)
        if len(holders) > 1:
            names = " and ".join(map(quoted, holders[:KEYS]))
            raise CheckpointError(
                f"{path} has tensors in {names}; say which: at = {quoted(holders[0])} in txport.toml, --at for a draft"
            )
        values = values[holders[0]] if holders else {}
    if not isinstance(values, Mapping) or not values:
        raise CheckpointError(f"{path} holds no tensors by name; {SAVE}")
    return {str(name): tensor.detach() for name, tensor in values.items() if isinstance(tensor, Tensor)}


def _holders(values: Mapping[Any, Any]) -> list[Any]:
    """The keys of dicts that hold tensors."""
    return [key for key, each in values.items() if isinstance(each, Mapping) and _has_tensors(each)]


def _has_tensors(values: Mapping[Any, Any]) -> bool:
    return any(isinstance(each, Tensor) for each in values.values())


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
