"""Sizes of values that a chat template is about to create, or has created."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import ItemsView, Iterable, Mapping, MappingView, Sequence, Set
from itertools import chain
from typing import Any

from jinja2.utils import Namespace

# limit of the characters of a text, entries of a list or bits of a number, and of all characters that a template prints
LARGEST = 1 << 22
STEPS = 1 << 30  # comparisons of characters by one method of a text
PADDED = 2000  # characters of a formatted number whose width and precision have up to three digits
# a width of four digits, or given by an argument; names in the format have no parentheses
WIDTH = re.compile(r"%(\([^()]*\))?[^a-zA-Z%]*(\d{4}|\*)|%\([^()]*\(|\{[^{}]*:")
FEWER = re.compile(r"%(\([^()]*\))?[^\w%]*\d")
# methods that may compare each character of a text with each of an argument: reverse searches and strips
QUADRATIC = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
ENTRY = 8  # bytes of a list entry
CHARACTER = 88  # bytes of a one-character text in a list, or of another small value
ANYTHING = 1000  # bytes of a macro, a loop, a generator, ...


def bytes_of(value: Any, each: int = 0) -> int:
    """Return the memory of a value in bytes, plus `each` bytes per entry if the entries are new too."""
    if isinstance(value, str | int | float):
        return sys.getsizeof(value)
    if isinstance(value, list | tuple | set | dict):
        return sys.getsizeof(value) + each * len(value)
    return ANYTHING


def size_of_operator(operator: str, left: Any, right: Any) -> float:
    """Return the size of an operator's result if it may be much larger than the operands; otherwise 0."""
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        return len(left) + len(right)
    if operator == "-":  # difference of sets, which compares their entries
        return max(extent(left), extent(right))
    if operator == "%" and isinstance(left, str):
        return size_of_format(left, left.count("%"), right if isinstance(right, tuple) else [right])
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    if operator == "*":
        sizes = [len(each) if hasattr(each, "__len__") else each for each in (left, right)]
        return math.prod(size for size in sizes if isinstance(size, int)) if any(map(_has_length, (left, right))) else 0
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right)
    return 0


def size_of_format(text: str, places: int, values: Sequence[Any]) -> float:
    """Return the maximum size of a format with `places` placeholders for these values."""
    if WIDTH.search(text):
        return math.inf
    longest = max(map(extent, values), default=0) + (PADDED if FEWER.search(text) else 0)
    return len(text) + places * longest


def extent(value: Any, known: dict[int, float] | None = None) -> float:
    """Return the minimum number of characters of a value, including nested texts and lists.

    A list that occurs in a value several times is visited once and counted each time. A result above `LARGEST` only
    states that the value is too large.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() / 4
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if not isinstance(value, list | tuple | Set | Mapping | MappingView):
        return 0
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = 0  # for a value that contains itself
    total = 2.0
    for each in _parts(value):  # most are texts and numbers, which need no call
        if type(each) is str:
            total += 2 + len(each)
        elif type(each) is int:
            total += 2 + each.bit_length() / 4
        else:
            total += 2 + extent(each, known)
        if total > LARGEST:
            break
    known[id(value)] = total
    return total


def _parts(value: Any) -> Iterable[Any]:
    """Return the entries of a collection; of a mapping, its keys and values."""
    pairs = value.items() if isinstance(value, Mapping) else value
    return chain.from_iterable(pairs) if isinstance(pairs, ItemsView) else pairs


def _has_length(value: Any) -> bool:
    return hasattr(value, "__len__")


def size_of_call(text: str, name: str, args: tuple[Any, ...]) -> float:
    """Return the size of the result of a text method if it may be much larger than its inputs; otherwise 0."""
    if name == "join" and args and _has_length(args[0]):
        return len(text) * len(args[0]) + extent(args[0])
    if name == "replace" and len(args) > 1 and all(isinstance(each, str) for each in args[:2]):
        return len(text) + text.count(args[0]) * len(args[1])
    return 0


def steps_of_call(text: str, name: str, args: Sequence[Any]) -> int:
    """Return the maximum number of character comparisons of a quadratic text method; 0 for other methods."""
    return len(text) * max(map(len, filter(_is_text, args)), default=0) if name in QUADRATIC else 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
