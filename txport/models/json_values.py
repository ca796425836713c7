"""Checks of JSON values from untrusted files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from txport.errors import quoted

LARGEST = 1 << 31  # upper limit of a size or a token id


def require_keys(what: str, values: object, kind: type) -> None:
    """Raise `TypeError`, `KeyError` or `ValueError` unless the keys are exactly the fields of a dataclass."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be an object, got {quoted(values)}")
    wanted = {field.name for field in dataclasses.fields(kind)}
    if missing := sorted(wanted - values.keys()):
        raise KeyError(f"{what}.{missing[0]}")
    if strange := sorted(map(str, values.keys() - wanted)):
        raise ValueError(f"{what} has no {quoted(strange[0])}")


def several(what: str, values: object, most: int) -> Sequence[object]:
    """Return a list of at most `most` values; raise `TypeError` otherwise."""
    if not isinstance(values, list | tuple) or len(values) > most:
        raise TypeError(f"{what} must be a list of at most {most}, got {quoted(values)}")
    return values


def whole_number(what: str, value: object, least: int, most: int = LARGEST - 1) -> int:
    """Return an integer from `least` to `most`; raise `ValueError` otherwise."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} must be a whole number from {least} to {most}, got {quoted(value)}")
    return value


def token_id(what: str, value: Any, size: int) -> int:
    """Return a token id of a vocabulary of this size; raise `ValueError` otherwise."""
    if whole_number(what, value, 0) >= size:
        raise ValueError(f"{what} must lie in the vocabulary of {size}, got {quoted(value)}")
    return int(value)


def text(what: str, value: object) -> str:
    """Return a string; raise `TypeError` otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {quoted(value)}")
    return value


def switch(what: str, value: object) -> bool:
    """Return a bool; raise `TypeError` otherwise."""
    if type(value) is not bool:
        raise TypeError(f"{what} must be true or false, got {quoted(value)}")
    return value


def listed(value: object) -> Any:
    """Return a value with all tuples converted to lists, as JSON has them."""
    if isinstance(value, dict):
        return {name: listed(each) for name, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, tuple | list) else value
