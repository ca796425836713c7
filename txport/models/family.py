"""Folders that transformers wrote: their `config.json` names a `model_type`, which a family turns into an architecture.

Each family is one file in `txport/models/families`, with a `FAMILY`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from txport.errors import ConfigError, quoted
from txport.models import families
from txport.models.weights import Rule

TYPE = "model_type"


class Published:
    """The values of a published `config.json`; a key that is missing or null is the family's default."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    @property
    def type(self) -> str:
        """The `model_type`."""
        return str(self._values[TYPE])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it was saved from."""
        found = self.get("architectures", [])
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def get(self, name: str, default: Any = None) -> Any:
        """One value."""
        value = self._values.get(name)
        return default if value is None else value

    def first(self, *names: str, default: Any = None) -> Any:
        """The first of several keys that has a value."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), default)

    def word(self, name: str, meanings: Mapping[str, str], default: str) -> str:
        """What a word means here; `ConfigError` for one that nothing expresses."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in meanings:
            raise ConfigError(f"{name} {quoted(value)} can't be expressed; there are {', '.join(sorted(meanings))}")
        return meanings[value]

    def require(self, name: str, *allowed: Any) -> None:
        """`ConfigError` unless a value is one of these; the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ConfigError(f"{name} {quoted(value)} can't be expressed; it must be {expected}")

    def tokens(self, name: str, default: int) -> tuple[int, ...]:
        """One token or several."""
        value = self.get(name, default)
        return tuple(value) if isinstance(value, list) else (value,)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that an architecture can hold: their `model_type`s, and how their configs and weights translate.

    `config` gives the keys of the architecture's config. `weights` are rules that go before the architecture's own.
    `classes` are what the names of the classes end with that such a checkpoint may be saved from.
    """

    types: tuple[str, ...]
    architecture: str
    classes: tuple[str, ...]
    config: Callable[[Published], dict[str, Any]]
    weights: tuple[Rule, ...] = ()

    def read(self, values: Published) -> dict[str, Any]:
        """The keys of the architecture's config; `ConfigError` for what it can't express."""
        if strange := [name for name in values.classes if not name.endswith(self.classes)]:
            known = f"a {values.type} is saved from classes that end with {', '.join(self.classes)}"
            raise ConfigError(f"the class {quoted(strange[0])} can't be expressed; {known}")
        try:
            return self.config(values)
        except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"it is not the config of a {values.type}: {error!r}") from error


@cache
def all_families() -> dict[str, Family]:
    """Each family under each of its `model_type`s."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        family: Family = importlib.import_module(f"{families.__name__}.{module.name}").FAMILY
        found |= dict.fromkeys(family.types, family)
    return dict(sorted(found.items()))


def find(model_type: object) -> Family:
    """The family of a `model_type`; `ConfigError` if there is none."""
    known = all_families()
    if not isinstance(model_type, str) or model_type not in known:
        raise ConfigError(f"unknown {TYPE} {quoted(model_type)}; there are {', '.join(known)}")
    return known[model_type]


ACTIVATIONS = {  # by their names in transformers
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
