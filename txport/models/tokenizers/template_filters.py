"""Jinja filters and tests for chat templates, which check limits before they create or read large values.

Imports jinja2; therefore imported only when a template is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, filters, pass_context, pass_environment

from txport.models.tokenizers.origin import COUNTED, ITERATED, OUTPUT, TEXTS, TURNS
from txport.models.tokenizers.template_sizes import (
    STEPS,
    extent,
    size_of_call,
    size_of_operator,
    steps_of_call,
)

if TYPE_CHECKING:
    from txport.models.tokenizers.templates import Bounded

WIDEST = 100  # characters of an indent or a date format, and decimals of a rounded number
TURN = 64  # bytes counted per iteration of a loop


@pass_context  # prevents evaluation when a template is compiled
def _counted(context: Any, value: Any, each: int = 0) -> Any:
    return context.environment.counted(value, each)


@pass_context
def _output(context: Any, value: Any) -> str:
    text: str = context.environment.output(value)
    return text


@pass_context
def _bounded(context: Any, value: Any) -> Any:
    return context.environment.bounded(value)


@pass_environment
def turns(environment: Bounded, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the same values and count each."""
    for value in values:
        environment.count(TURN)
        yield value


@pass_environment
def _texts(environment: Bounded, values: list[Any]) -> str:
    environment.require(extent(values))
    texts = [str(value) for value in values]
    return "".join(texts)


@pass_environment
def _sum(environment: Bounded, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    of: Callable[[Any], Any] = filters.make_attrgetter(environment, attribute)
    total = start
    for each in turns(environment, values):
        total = environment.call_binop(None, "+", total, each if attribute is None else of(each))
    return total


@pass_environment
def _join(environment: Bounded, values: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    of: Callable[[Any], Any] = filters.make_attrgetter(environment, attribute or "")
    found = (
        [of(each) for each in turns(environment, values)] if attribute is not None else [*turns(environment, values)]
    )
    environment.require(max(extent(found), extent(d)))
    texts = [str(each) for each in turns(environment, found)]
    environment.require(sum(map(len, texts)) + len(texts) * len(str(d)))
    return str(d).join(texts)


@pass_environment
def _replace(environment: Bounded, text: Any, old: Any, new: Any, count: int = -1) -> str:
    environment.require(max(map(extent, (text, old, new))))
    environment.require(size_of_call(str(text), "replace", (str(old), str(new))))
    return str(text).replace(str(old), str(new), count)


@pass_environment
def _trim(environment: Bounded, text: Any, chars: str | None = None) -> str:
    environment.require(steps_of_call(str(text), "strip", [chars]), STEPS)
    return filters.do_trim(text, chars)


@pass_environment
def _round(environment: Bounded, value: Any, precision: int = 0, method: Any = "common") -> Any:
    environment.require(abs(precision), WIDEST)
    return filters.do_round(value, precision, method)


@pass_environment
def _indent(environment: Bounded, text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    environment.require(extent(text))
    environment.require(width if isinstance(width, int) else len(width), WIDEST)
    return filters.do_indent(str(text), width, first, blank)


@pass_environment
def _format(environment: Bounded, text: Any, *args: Any, **kwargs: Any) -> str:
    environment.require(extent(text))
    environment.require(size_of_operator("%", str(text), kwargs or args))
    return str(text) % (kwargs or args)


@pass_environment
def _to_json(
    environment: Bounded, value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **how: Any
) -> str:
    """Return JSON as for a model: HTML characters are not escaped."""
    environment.require(indent if isinstance(indent, int) else len(indent or ""), WIDEST)
    environment.require(extent(value))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, **how)
    parts = []
    size = 0
    for part in encoder.iterencode(value):  # yields parts: it can be stopped early
        size += len(part)
        environment.require(size)
        parts.append(part)
    return "".join(parts)


def _refuse(message: str) -> None:
    raise TemplateError(message)


@pass_environment
def _now(environment: Bounded, how: str) -> str:
    environment.require(len(how), WIDEST)
    return datetime.now().astimezone().strftime(how)


@pass_environment
def _is_divisible(environment: Bounded, value: Any, by: Any) -> bool:
    return bool(environment.call_binop(None, "%", value, by) == 0)


@pass_environment
def _is_even(environment: Bounded, value: Any) -> bool:
    return bool(environment.call_binop(None, "%", value, 2) == 0)


@pass_environment
def _is_odd(environment: Bounded, value: Any) -> bool:
    return bool(environment.call_binop(None, "%", value, 2) == 1)


FILTERS: dict[str, Callable[..., Any]] = {  # these replace jinja2's
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _to_json,
    "trim": _trim,
    TEXTS: _texts,
}
WATCHING: dict[str, Callable[..., Any]] = {  # inserted into templates by `Bounded`; they check limits themselves
    COUNTED: _counted,
    OUTPUT: _output,
    TURNS: turns,
    ITERATED: _bounded,
}
TESTS: dict[str, Callable[..., Any]] = {"divisibleby": _is_divisible, "even": _is_even, "odd": _is_odd}
GLOBALS: dict[str, Callable[..., Any]] = {"raise_exception": _refuse, "strftime_now": _now}
