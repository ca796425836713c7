"""What every format of checkpoints gives: the model that a folder is of, and how its tensors become the model's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from txport.errors import CheckpointError, ConfigError, brief, quoted
from txport.models.config import Config
from txport.models.facts import Facts
from txport.models.names import CONFIG, WEIGHTS, weight_files
from txport.models.weights import Rule


def no_defaults(facts: Facts) -> Mapping[str, Any]:
    """Of a checkpoint that does not say how to search."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint as its files have it.

    `rules` turn its tensors into the model's; `weights` reads them, by the names in the files. `generation` gives how
    the model searches unless it is told otherwise. Errors about weights name the file or folder `place`.
    """

    config: Config
    rules: tuple[Rule, ...]
    weights: Callable[[], Mapping[str, Tensor]]
    place: Path
    generation: Callable[[Facts], Mapping[str, Any]] = field(default=no_defaults)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way in which checkpoints are written: whether a folder is of it, and what it says.

    `read` raises `ConfigError` or `CheckpointError`, whose message names the file.
    """

    recognises: Callable[[Path], bool]
    read: Callable[[Path], Source]


FORMATS = ("marian", "native", "hugging_face")  # modules of this package; the first that recognises a folder reads it


def read_source(folder: Path) -> Source:
    """What the files of a checkpoint say; `ConfigError` or `CheckpointError` for what can't be a model's."""
    for name in FORMATS:
        found: Format = importlib.import_module(f"{__package__}.{name}").FORMAT
        if found.recognises(folder):
            return found.read(folder)
    raise ConfigError(f"{folder / CONFIG} names no architecture, and nothing else tells who wrote it")


def place_of(folder: Path) -> Path:
    """What an error about tensors in safetensors names."""
    return folder / WEIGHTS if (folder / WEIGHTS).is_file() else folder


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder by their names in its files, one or several."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            part = load_file(path)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not a whole safetensors file: {brief(error)}") from error
        if twice := weights.keys() & part.keys():
            raise CheckpointError(f"{path} holds {quoted(min(twice))}, which another file of {folder} holds too")
        weights |= part
    return weights
