"""Validation of numbers and switches that a caller passes."""

from __future__ import annotations

import operator
from typing import Any

from txport.errors import UnsupportedError, quoted


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int; raise `UnsupportedError` unless it is a whole number within the bounds."""
    try:
        if is_switch(value):  # Python takes True for 1
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{name} must be a whole number, got {quoted(value)}") from None
    if least is not None and number < least:
        limit = "must not be negative" if least == 0 else f"must be at least {least}"
        raise UnsupportedError(f"{name} {limit}, got {quoted(value)}")
    if most is not None and number > most:
        raise UnsupportedError(f"{name} must not exceed {most}, got {quoted(value)}")
    return number


def number(name: str, value: Any) -> float:
    """Return `value` as a float, NaN and infinity included; raise `UnsupportedError` for any other value."""
    try:
        if is_switch(value) or isinstance(value, str | bytes | bytearray) or hasattr(value, "__len__"):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedError(f"{name} must be a number, got {quoted(value)}") from None


def switch(name: str, value: object) -> bool:
    """Return `value` as a bool; raise `UnsupportedError` unless it is True or False."""
    if not is_switch(value):
        raise UnsupportedError(f"{name} must be True or False, got {quoted(value)}")
    return bool(value)


def is_switch(value: object) -> bool:
    """Return whether a value is a bool of Python or NumPy."""
    return type(value).__name__ in ("bool", "bool_")
