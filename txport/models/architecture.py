"""The record of an architecture, and the lookup by name: each one is a file in `txport/models/architectures`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from txport.errors import ConfigError, quoted
from txport.models import architectures
from txport.models.config import Config
from txport.models.model import Model
from txport.models.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model definition: its config class, the function that builds a model, and presets (published sizes).

    `hugging_face` returns the `config.json` by which Optimum and transformers.js recognise the portable graphs.
    `weights` renames tensors of foreign checkpoints to the names of the model.
    """

    config: type[Config]
    build: Callable[[Any], Model]
    presets: Mapping[str, Config]
    hugging_face: Callable[[Any], dict[str, object]]
    draw: Callable[[Any], Config]  # NumPy generator -> a small random config of any variant
    weights: tuple[Rule, ...] = ()
    name: str = field(default="", compare=False)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all architectures, in alphabetical order."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(architectures.__path__)))


def find(name: object) -> Architecture:
    """Return the architecture of this name; raise `ConfigError` if there is none."""
    if name not in names():
        raise ConfigError(f"unknown architecture {quoted(name)}; there are {', '.join(names())}")
    module = importlib.import_module(f"{architectures.__name__}.{name}")
    found: Architecture = module.ARCHITECTURE
    return found


def name_of(config: Config) -> str:
    """Return the name of the architecture that a config belongs to."""
    return type(config).__module__.rpartition(".")[2]


def of(config: Config) -> Architecture:
    """Return the architecture that a config belongs to."""
    return find(name_of(config))


@cache
def presets() -> dict[str, Config]:
    """Return the presets of all architectures by name; names are unique across architectures."""
    return {preset: config for name in names() for preset, config in find(name).presets.items()}
