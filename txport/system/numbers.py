"""Numbers and switches that a caller gives: what is none, or lies out of range, is refused in one line."""

from __future__ import annotations

import operator
from typing import Any

from txport.errors import UnsupportedError, quoted


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number of any kind within bounds, as an int; `UnsupportedError` for any other value."""
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
    """A number of any kind, NaN and infinity among them, as a float; `UnsupportedError` for any other value."""
    try:
        if is_switch(value) or isinstance(value, str | bytes | bytearray) or hasattr(value, "__len__"):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedError(f"{name} must be a number, got {quoted(value)}") from None


def switch(name: str, value: Any) -> bool:
    """True or False; `UnsupportedError` for any other value."""
    if not is_switch(value):
        raise UnsupportedError(f"{name} must be True or False, got {quoted(value)}")
    return bool(value)


def is_switch(value: Any) -> bool:
    """Whether it is Python's True or False, or NumPy's."""
    return type(value).__name__ in ("bool", "bool_")
