"""Where the templates of chats run: they reach what they are given, and take bounded time and memory.

Imports jinja2, and so is imported where a template is used.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, ext, filters, nodes, pass_context, pass_environment
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from txport.models.tokenizers.origin import MADE, PRINTED, TEXTS, TURNS
from txport.models.tokenizers.template_sizes import (
    CHARACTER,
    ENTRY,
    LARGEST,
    bytes_of,
    extent,
    size_of_call,
    size_of_format,
    size_of_operator,
)

LONGEST = 10.0  # seconds of one prompt
MOST = 1 << 27  # bytes of all that a template makes for one text, whether or not it keeps them
WIDEST = 100  # characters of an indent, and of how a day is written
COPIES = 4  # of the arguments of a call, on the way to a macro
TURN = 64  # bytes that a turn of a loop counts as
# what pads, repeats or makes tags: no template of a chat needs it
FILTERS = ("batch", "center", "filesizeformat", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
METHODS = ("center", "encode", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill")
# filters that make a text of what they are given
TEXTUAL = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags", "title", "trim"),
    *("truncate", "upper", "urlencode", "wordcount"),
)
SPLITS = ("split", "rsplit", "splitlines")  # methods that make a list of a text


class _Spent(threading.local):
    """What a prompt took by now, in the thread that makes it."""

    until = math.inf  # of the clock
    made = 0  # bytes, for one text
    printed = 0  # characters of it


class Bounded(ImmutableSandboxedEnvironment):
    """A sandbox that looks at the clock, and at all that is made; `TemplateError` for too much."""

    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "/", "//"})
    intercepted_unops = frozenset({"-", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
        self._spent = _Spent()
        for name in FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"join": _join, "replace": _replace, "indent": _indent, "format": _format, "tojson": _to_json}
        self.filters |= {"sum": _sum, TEXTS: _texts}
        self.filters |= {name: self._counted(each, is_textual=name in TEXTUAL) for name, each in self.filters.items()}
        self.filters |= {TURNS: _turns, MADE: _made, PRINTED: _printed}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}

    def begin(self) -> None:
        """A prompt begins."""
        self._spent.until = time.monotonic() + LONGEST

    def begin_text(self) -> None:
        """One of the texts that a prompt takes begins: what it makes is counted anew, and the time goes on."""
        self._spent.made, self._spent.printed = 0, 0

    def require(self, size: float, most: int = LARGEST) -> None:
        """Raise `TemplateError` when time is up, or for something of this size."""
        if time.monotonic() > self._spent.until:
            raise TemplateError(f"it takes more than {LONGEST:g} seconds")
        if size > most:
            raise TemplateError(f"it makes something of the size {size:.3g}, the most is {most}")

    def count(self, size: int) -> None:
        """So many bytes more were made, or are about to be."""
        self.require(0)
        self._spent.made += size
        if self._spent.made > MOST:
            raise TemplateError(f"it makes more than {MOST >> 20} MB on its way")

    def made(self, value: Any, each: int = 0) -> Any:
        """The value, after it was counted; `each` of its entries is new too, and has so many bytes."""
        self.count(bytes_of(value, each))
        return value

    def printed(self, value: Any) -> str:
        """The text of a value, a part of the prompt."""
        self.require(self._spent.printed + extent(value))
        text = str(value)
        self.count(ENTRY if text is value else ENTRY + bytes_of(text))
        self._spent.printed += len(text)
        self.require(self._spent.printed)
        return text

    def _counted(self, function: Callable[..., Any], *, is_textual: bool) -> Callable[..., Any]:
        """The same filter, for what is not too large, and with its result counted."""

        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            if is_textual:
                self.require(max(map(extent, args), default=0))
            else:
                self.require(CHARACTER * max((len(each) for each in args if isinstance(each, str)), default=0), MOST)
            self.count(ENTRY * sum(len(each) for each in args if isinstance(each, list | tuple | dict)))
            return self.made(function(*args, **options), CHARACTER)

        return counted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As jinja2 does, with a look at all that is made where jinja2 asks no environment."""
        parsed = super()._parse(source, name, filename)
        return _Watched().visit(parsed)  # type: ignore[no-any-return]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        self.require(size_of_operator(operator, left, right))
        return self.made(super().call_binop(context, operator, left, right))

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        """See `SandboxedEnvironment`."""
        return self.made(super().call_unop(context, operator, arg))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 has it
        """See `SandboxedEnvironment`."""
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            __self.require(size_of_call(text, name, args))
            __self.require(CHARACTER * len(text) if name in SPLITS else 0, MOST)
            __self.count(bytes_of(text))
        __self.count(COPIES * ENTRY * (len(args) + len(kwargs)))
        return __self.made(super().call(__context, __obj, *args, **kwargs), CHARACTER)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See `SandboxedEnvironment`."""
        refused = METHODS if isinstance(obj, str) else ("to_bytes",)
        return attr not in refused and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """See `SandboxedEnvironment`, which asks for each attribute."""
        found = super().wrap_str_format(value)
        if found is None:
            return None
        text = value.__self__

        def bounded(*args: Any, **options: Any) -> Any:
            self.require(size_of_format(text, text.count("{"), [*args, *options.values()]))
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
    """Puts filters of ours over what jinja2 makes without asking the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.iter = _under(TURNS, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(TEXTS, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        texts: list[nodes.Expr] = []
        for each in node.nodes:
            text = nodes.Const(each.data, lineno=each.lineno) if isinstance(each, nodes.TemplateData) else each
            texts.append(_under(PRINTED, text))
        node.nodes = texts
        return node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(MADE, node, CHARACTER)

    visit_Dict = visit_List  # noqa: N815 - as jinja2 has it

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(MADE, node, CHARACTER) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_AssignBlock(self, node: nodes.AssignBlock | nodes.FilterBlock) -> nodes.Node:  # noqa: N802 - as jinja2
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, MADE, [], [], None, None, lineno=node.lineno)
        return node

    visit_FilterBlock = visit_AssignBlock  # noqa: N815 - as jinja2 has it

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> list[nodes.Node]:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        nothing = nodes.Const(None, lineno=node.lineno)
        return [nodes.ExprStmt(_under(MADE, nothing), lineno=node.lineno), node]

    visit_CallBlock = visit_Macro  # noqa: N815 - as jinja2 has it


def _under(name: str, node: Any, *values: int) -> nodes.Filter:
    """What a filter of ours makes of a node."""
    args: list[nodes.Expr] = [nodes.Const(value, lineno=node.lineno) for value in values]
    return nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)


@pass_context  # and so of nothing before a template runs
def _made(context: Any, value: Any, each: int = 0) -> Any:
    return context.environment.made(value, each)


@pass_context
def _printed(context: Any, value: Any) -> str:
    text: str = context.environment.printed(value)
    return text


@pass_environment
def _turns(environment: Bounded, values: Iterable[Any]) -> Iterator[Any]:
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
    for each in _turns(environment, values):
        total = environment.call_binop(None, "+", total, each if attribute is None else of(each))
    return total


@pass_environment
def _join(environment: Bounded, values: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    of: Callable[[Any], Any] = filters.make_attrgetter(environment, attribute or "")
    found = (
        [of(each) for each in _turns(environment, values)] if attribute is not None else [*_turns(environment, values)]
    )
    environment.require(max(extent(found), extent(d)))
    texts = [str(each) for each in _turns(environment, found)]
    environment.require(sum(map(len, texts)) + len(texts) * len(str(d)))
    return str(d).join(texts)


@pass_environment
def _replace(environment: Bounded, text: Any, old: Any, new: Any, count: int = -1) -> str:
    environment.require(max(map(extent, (text, old, new))))
    environment.require(size_of_call(str(text), "replace", (str(old), str(new))))
    return str(text).replace(str(old), str(new), count)


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
    """As JSON is for a model: nothing of it is escaped for pages."""
    environment.require(indent if isinstance(indent, int) else len(indent or ""), WIDEST)
    environment.require(extent(value))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, **how)
    parts, size = [], 0
    for part in encoder.iterencode(value):  # which ends before all of it is there
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
