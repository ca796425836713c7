"""The base class of configs: frozen dataclasses with all checks in one place, converted from and to JSON values."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

from txport.errors import ConfigError, TooLargeError, quoted
from txport.system.documents import DocumentError, read_json

LARGEST = 1 << 24  # upper limit of any size, so that no product of two overflows
LISTED = 10  # maximum number of keys in an error
LARGEST_FILE = 1 << 20  # bytes of a config.json
MOST_LAYERS = 1 << 10
LONGEST = 1 << 20
TYPES: Callable[[object], Mapping[str, Any]] = cache(get_type_hints)  # config class -> type of each field
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


def choice(default: str, *others: str) -> Any:
    """Return a field that is one of several strings; the first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


def size(default: object = dataclasses.MISSING, *, least: int = 1, most: int = LARGEST) -> Any:
    """Return an integer field within bounds; without a default, every config must set it."""
    return field(default=default, metadata={"at least": least, "at most": most})


def layers(default: int) -> Any:
    """Return a field that is a number of layers."""
    return size(default, most=MOST_LAYERS)


def real(
    default: object = dataclasses.MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a float field that is `>= least`, `> above` and `< below`, for the bounds that are given."""
    return field(default=default, metadata={"at least": least, "above": above, "below": below})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The sizes and options of one model. The config of an architecture checks its combinations in `problems`.

    `RARE` are fields that JSON values and `repr` leave out at their defaults.
    """

    RARE = frozenset[str]()

    def __post_init__(self) -> None:
        if problems := [*_wrong_types(self), *_wrong_choices(self)]:
            raise ConfigError("; ".join(problems))
        wrong = dict(_wrong_sizes(self))
        if problems := list(wrong) or [*self.problems()]:
            kind = TooLargeError if set(wrong.values()) == {LONGEST} else ConfigError
            raise kind("; ".join(problems))

    def problems(self) -> Iterator[str]:
        """Yield a message for each invalid combination; types, choices and bounds are already checked."""
        return iter(())

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """Return the allowed values of each field that is a choice."""
        return {each.name: each.metadata["choices"] for each in dataclasses.fields(cls) if "choices" in each.metadata}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Build a config from JSON values; raise `ConfigError` for unknown or missing keys."""
        fields = {each.name: each for each in dataclasses.fields(cls)}
        strange = [key for key in values if key not in fields]
        unknown = [_describe_unknown(key, fields) for key in strange[:LISTED]] + strange[LISTED:]
        required = [name for name, each in fields.items() if each.default is dataclasses.MISSING]
        missing = [f"key {name!r} is missing" for name in required if name not in values]
        if unknown or missing:
            problems = [*missing, *unknown]
            more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
            raise ConfigError("; ".join([*problems[:LISTED], *more]))
        tuples = {name for name, hint in TYPES(cls).items() if str(hint).startswith("tuple")}
        return cls(**{k: tuple(v) if k in tuples and isinstance(v, list) else v for k, v in values.items()})

    def to_dict(self) -> dict[str, object]:
        """Return the config as JSON values, in declaration order."""
        usual = {each.name: each.default for each in dataclasses.fields(self) if each.name in self.RARE}
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in usual or v != usual[k]}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def __repr__(self) -> str:
        """Return the `repr` of a dataclass with the fields of `to_dict`: digests of presets are computed from it."""
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.to_dict())})"


def read_config(path: Path) -> dict[str, Any]:
    """Return the values of a `config.json`; raise `ConfigError` unless it is a JSON object."""
    try:
        return read_json(path, LARGEST_FILE)
    except DocumentError as error:
        raise ConfigError(str(error)) from error


def require_token(name: str, value: int, side: str, vocabulary: int) -> Iterator[str]:
    """Yield a message if a token id is not in the vocabulary."""
    if not 0 <= value < vocabulary:
        yield f"{name} must lie in the {side} vocabulary of {vocabulary}, got {quoted(value)}"


def _describe_unknown(key: str, known: Mapping[str, object]) -> str:
    import difflib

    close = difflib.get_close_matches(key, known, n=1)
    return f"unknown key {quoted(key)}" + (f" (did you mean {close[0]!r}?)" if close else "")


def _wrong_types(config: Config) -> Iterator[str]:
    for name, hint in TYPES(type(config)).items():
        value = getattr(config, name)
        optional = NoneType in get_args(hint)
        kind = next((each for each in get_args(hint) if each is not NoneType), hint) if optional else hint
        if str(kind).startswith("tuple"):
            inner = get_args(kind)[0]
            if not isinstance(value, tuple) or not all(type(each) is inner for each in value):
                yield f"{name} must be a list of {inner.__name__}, got {quoted(value)}"
            continue
        accepted = (int, float) if kind is float else kind
        if value is None and optional:
            continue
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            yield f"{name} must be {kind.__name__}, got {quoted(value)}"


def _wrong_choices(config: Config) -> Iterator[str]:
    for name, allowed in config.choices().items():
        if getattr(config, name) not in allowed:
            yield f"{name} must be one of {', '.join(allowed)}; got {quoted(getattr(config, name))}"


def _wrong_sizes(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield a message for each number that is out of bounds, and the bound."""
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        for relation, is_kept in BOUNDS.items():
            bound = each.metadata.get(relation)
            if None not in (value, bound) and not is_kept(value, bound):  # NaN is outside all bounds
                yield f"{each.name} must be {relation} {bound}, got {quoted(value)}", bound
                break
