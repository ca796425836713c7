"""What an architecture is, and how one is found: each is one file in `txport/models/architectures`."""

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
from txport.models.weights.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model definition: its config, how a model is built of one, published sizes, and its name elsewhere.

    `hugging_face` gives the `config.json` by which Optimum and transformers.js know what the portable graphs are;
    `weights` turns the names that tensors have in checkpoints of others into those of the model.
    """

    config: type[Config]
    build: Callable[[Any], Model]
    presets: Mapping[str, Config]
    hugging_face: Callable[[Any], dict[str, Any]]
    draw: Callable[[Any], Config]  # NumPy generator -> a small config of any variant
    weights: tuple[Rule, ...] = ()
    name: str = field(default="", compare=False)


@cache
def names() -> tuple[str, ...]:
    """Those of all architectures, in alphabetical order."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(architectures.__path__)))


def find(name: object) -> Architecture:
    """The architecture of this name; `ConfigError` if there is none."""
    if name not in names():
        raise ConfigError(f"unknown architecture {quoted(name)}; there are {', '.join(names())}")
    module = importlib.import_module(f"{architectures.__name__}.{name}")
    found: Architecture = module.ARCHITECTURE
    return found


def name_of(config: Config) -> str:
    """The name of the architecture that a config is of."""
    return type(config).__module__.rpartition(".")[2]


def of(config: Config) -> Architecture:
    """The architecture that a config is of."""
    return find(name_of(config))


@cache
def presets() -> dict[str, Config]:
    """The presets of all architectures by name, no two of which are alike."""
    return {preset: config for name in names() for preset, config in find(name).presets.items()}
