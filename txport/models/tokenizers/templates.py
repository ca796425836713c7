"""Where the templates of chats run: they reach what they are given, and take bounded time and memory.

Imports jinja2, and so is imported where a template is used.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, ext, filters, nodes, pass_environment
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from txport.models.tokenizers.origin import TEXTS, TURNS

LONGEST = 10.0  # seconds of one prompt
# characters of a text, entries of a list or bits of a number that a template makes, and all characters that it prints
LARGEST = 1 << 22
WIDEST = 100  # characters of an indent
PADDED = 2000  # characters of a number in a format whose width and precision have three digits
# what pads, repeats or makes tags: no template of a chat needs it
FILTERS = ("batch", "center", "filesizeformat", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
METHODS = ("center", "encode", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill")
# filters that make a text of what they are given
TEXTUAL = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags", "title", "trim"),
    *("truncate", "upper", "urlencode", "wordcount"),
)
# of four digits, or given by an argument; a name in it has no parentheses
WIDTH = re.compile(r"%(\([^()]*\))?[^a-zA-Z%]*(\d{4}|\*)|%\([^()]*\(|\{[^{}]*:")
FEWER = re.compile(r"%(\([^()]*\))?\W*\d")


class Bounded(ImmutableSandboxedEnvironment):
    """A sandbox that looks at the clock, and at what is about to be made; `TemplateError` for too much."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols], finalize=self._printed
        )
        self._until, self._count = math.inf, 0
        for name in FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {name: self._measured(self.filters[name]) for name in TEXTUAL}
        self.filters |= {"join": _join, "replace": _replace, "indent": _indent, "format": _format, "tojson": _to_json}
        self.filters |= {TURNS: _turns, TEXTS: _texts}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}

    def begin(self) -> None:
        """A prompt begins."""
        self._until = time.monotonic() + LONGEST

    def begin_text(self) -> None:
        """One of the texts that a prompt takes begins: what it prints is counted anew, and the time goes on."""
        self._count = 0

    def require(self, size: float, most: int = LARGEST) -> None:
        """Raise `TemplateError` when time is up, or for something of this size."""
        if time.monotonic() > self._until:
            raise TemplateError(f"it takes more than {LONGEST:g} seconds")
        if size > most:
            raise TemplateError(f"it makes something of the size {size:.3g}, the most is {most}")

    def _printed(self, value: Any) -> str:
        self.require(self._count + _extent(value))
        text = str(value)
        self._count += len(text)
        self.require(self._count)
        return text

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same filter, for what is not too large as a text."""

        @wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            self.require(max(map(_extent, args), default=0))
            return function(*args, **options)

        return measured

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As jinja2 does, with a look at each turn of a loop and at texts that are put together by `~`."""
        parsed = super()._parse(source, name, filename)
        return _Watched().visit(parsed)  # type: ignore[no-any-return]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        self.require(_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 has it
        """See `SandboxedEnvironment`."""
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        __self.require(_size_of_call(text, name, args) if isinstance(text, str) else 0)
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See `SandboxedEnvironment`."""
        return not (isinstance(obj, str) and attr in METHODS) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """See `SandboxedEnvironment`, which asks for each attribute."""
        found = super().wrap_str_format(value)
        if found is None:
            return None
        text = value.__self__

        def bounded(*args: Any, **options: Any) -> Any:
            self.require(_size_of_format(text, text.count("{"), [*args, *options.values()]))
            return found(*args, **options)

        return bounded


class Generation(ext.Extension):
    """Marks what the model said, for training; here it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Any) -> Any:
        """See `Extension`."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Watched(NodeTransformer):
    """Puts a filter over what a loop goes through, and one in place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, TURNS, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        texts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(texts, TEXTS, [], [], None, None, lineno=node.lineno)


def _size(operator: str, left: Any, right: Any) -> float:
    """How large the result of an operator is, of those that may be much larger than what they are given."""
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        return len(left) + len(right)
    if operator == "%" and isinstance(left, str):
        return _size_of_format(left, left.count("%"), right if isinstance(right, tuple) else [right])
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    if operator == "*":
        sizes = [len(each) if hasattr(each, "__len__") else each for each in (left, right)]
        return math.prod(size for size in sizes if isinstance(size, int)) if any(map(_is_long, (left, right))) else 0
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right)
    return 0


def _size_of_format(text: str, places: int, values: Sequence[Any]) -> float:
    """The same of a format with so many places for these values."""
    if WIDTH.search(text):
        return math.inf
    longest = max(map(_extent, values), default=0) + (PADDED if FEWER.search(text) else 0)
    return len(text) + places * longest


def _extent(value: Any, known: dict[int, float] | None = None) -> float:
    """How many characters there are in a value at least, in texts and lists in it too; above `LARGEST` it need not say.

    A list that is in a value many times is looked at once, and counted as often as it is there.
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
    known[id(value)] = 0  # of one that is in itself
    total = 2.0
    entries: Iterable[Any] = value.items() if isinstance(value, Mapping) else value  # type: ignore[assignment]
    for each in entries:
        pair = each if isinstance(value, Mapping | ItemsView) else (each,)
        total += 2 + sum(_extent(part, known) for part in pair)
        if total > LARGEST:
            break
    known[id(value)] = total
    return total


def _is_long(value: Any) -> bool:
    return hasattr(value, "__len__")


def _size_of_call(text: str, name: str, args: tuple[Any, ...]) -> float:
    """The same of a method of a text."""
    if name == "join" and args and _is_long(args[0]):
        return len(text) * len(args[0]) + sum(len(each) for each in args[0] if isinstance(each, str))
    if name == "replace" and len(args) > 1 and all(isinstance(each, str) for each in args[:2]):
        return len(text) + text.count(args[0]) * len(args[1])
    return 0


@pass_environment
def _turns(environment: Bounded, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        environment.require(0)
        yield value


@pass_environment
def _texts(environment: Bounded, values: list[Any]) -> str:
    environment.require(_extent(values))
    texts = [str(value) for value in values]
    return "".join(texts)


@pass_environment
def _join(environment: Bounded, values: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    of: Callable[[Any], Any] = filters.make_attrgetter(environment, attribute or "")
    found = (
        [of(each) for each in _turns(environment, values)] if attribute is not None else [*_turns(environment, values)]
    )
    environment.require(max(_extent(found), _extent(d)))
    texts = [str(each) for each in _turns(environment, found)]
    environment.require(sum(map(len, texts)) + len(texts) * len(str(d)))
    return str(d).join(texts)


@pass_environment
def _replace(environment: Bounded, text: Any, old: Any, new: Any, count: int = -1) -> str:
    environment.require(max(map(_extent, (text, old, new))))
    environment.require(_size_of_call(str(text), "replace", (str(old), str(new))))
    return str(text).replace(str(old), str(new), count)


@pass_environment
def _indent(environment: Bounded, text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    environment.require(_extent(text))
    environment.require(width if isinstance(width, int) else len(width), WIDEST)
    return filters.do_indent(str(text), width, first, blank)


@pass_environment
def _format(environment: Bounded, text: Any, *args: Any, **kwargs: Any) -> str:
    environment.require(_extent(text))
    environment.require(_size("%", str(text), kwargs or args))
    return str(text) % (kwargs or args)


@pass_environment
def _to_json(
    environment: Bounded, value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **how: Any
) -> str:
    """As JSON is for a model: nothing of it is escaped for pages."""
    environment.require(indent if isinstance(indent, int) else len(indent or ""), WIDEST)
    environment.require(_extent(value))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, **how)
    parts, size = [], 0
    for part in encoder.iterencode(value):  # which ends before all of it is there
        size += len(part)
        environment.require(size)
        parts.append(part)
    return "".join(parts)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(how: str) -> str:
    return datetime.now().astimezone().strftime(how)
