"""What the checkpoints of trainers have in common: options, tensors and vocabularies, and the errors about them.

Of classes, a pickle of options and tensors may hold `argparse.Namespace` only.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from txport.checkpoints.sources.pickles import is_repeated, read_values
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, quoted

SUFFIX = ".pt"
NEVER = -64.0  # a logit below that of any generated token; not lower, because tolerances grow with the largest value
UNBOUNDED = 512  # maximum length in tokens of a model whose positions have no maximum


@contextmanager
def reading(place: Path, what: str) -> Iterator[None]:
    """Convert any error about `what` in this file to a `ConfigError` that begins with its path.

    A `CheckpointError` is raised unchanged.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: it is nested too deep to be {what}") from error
    except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{place}: it is not {what}: {error!r}") from error


def only_pickle(folder: Path, pattern: str) -> Path:
    """Return the only file of a folder that matches; raise `ConfigError` for none or several."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not found:
        raise ConfigError(f"{folder} holds no {pattern}, in which its trainer has a model")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(f"{folder} holds {len(found)} models ({names}); keep the one that is meant")
    return found[0]


def read_namespaces(path: Path) -> Mapping[str, object]:
    """Return the contents of a pickle; raise `CheckpointError` for any class but `argparse.Namespace`."""
    with torch.serialization.safe_globals([Namespace]):
        try:
            values = read_values(path)
        except CheckpointError as error:
            if found := re.search(r"it holds (omegaconf[\w.]*|fairseq[\w.]*|onmt[\w.]*|torchtext[\w.]*)", str(error)):
                told = f"{path} is refused: it holds {found[1]}, which may run code"
                raise CheckpointError(f"{told}; load it with its trainer and save it with plain dicts") from error
            raise
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{path} holds a {type(values).__name__}, expected a dict")
    return values


def options_of(values: object) -> dict[str, object]:
    """Return options by name, from a namespace or a dict; raise `ConfigError` for anything else."""
    found = vars(values) if isinstance(values, Namespace) else values
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"options must be names and values, got {quoted(type(values).__name__)}")
    if tensors := [name for name, each in found.items() if isinstance(each, Tensor)]:
        raise ConfigError(f"the option {quoted(tensors[0])} is a tensor, expected a plain value")
    return dict(found)


def tensors_of(values: object, path: Path) -> dict[str, Tensor]:
    """Return tensors by name; raise `CheckpointError` for anything else."""
    if not isinstance(values, Mapping) or not values:
        raise CheckpointError(f"{path} holds no tensors by name where its trainer has them")
    for name, tensor in values.items():
        if not isinstance(tensor, Tensor) or not isinstance(name, str):
            raise CheckpointError(f"{path} holds {quoted(name)}, which is no tensor by name")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(f"{path} holds {quoted(name)}, which is sparse or quantised")
        if is_repeated(tensor):
            raise CheckpointError(f"{path} holds {quoted(name)}, which repeats few numbers many times")
    return dict(values)


def weights_of(tensors: Mapping[str, Tensor], cut: Mapping[str, int] | None = None) -> Weights:
    """Return tensors as `Weights`; of those in `cut`, only so many first rows."""
    rows = {name: tensor for name, tensor in tensors.items() if tensor.dim()}
    rows |= {name: rows[name][:count] for name, count in (cut or {}).items() if name in rows}
    found = {**tensors, **rows}
    return Weights({name: tuple(tensor.shape) for name, tensor in found.items()}, found.__getitem__)


def rows_and_width(tensors: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Return the shape of a matrix; raise `ConfigError` if it is missing."""
    if name not in tensors or tensors[name].dim() != 2:
        raise ConfigError(f"it must have a matrix {quoted(name)}")
    return tensors[name].shape[0], tensors[name].shape[1]


def id_of(ids: Mapping[str, int], token: object, what: str) -> int:
    """Return the id of a token in a vocabulary; raise `ConfigError` if it is missing."""
    if not isinstance(token, str) or token not in ids:
        raise ConfigError(f"{what} {quoted(token)} must be a token of the vocabulary")
    return ids[token]
