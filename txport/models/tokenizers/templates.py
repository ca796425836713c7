"""Where the templates of chats run: they reach what they are given, and take bounded time and memory.

Imports jinja2, and so is imported where a template is used.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Set
from functools import wraps
from typing import Any

from jinja2 import TemplateError, ext, nodes
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from txport.models.tokenizers.origin import COUNTED, ITERATED, OUTPUT, TEXTS, TURNS
from txport.models.tokenizers.template_filters import FILTERS, GLOBALS, TESTS, WATCHING
from txport.models.tokenizers.template_sizes import (
    CHARACTER,
    ENTRY,
    LARGEST,
    STEPS,
    bytes_of,
    extent,
    size_of_call,
    size_of_format,
    size_of_operator,
    steps_of_call,
)

LONGEST = 10.0  # seconds of one prompt
MOST = 1 << 27  # bytes of all that a template makes for one text, whether or not it keeps them
COPIES = 4  # of the arguments of a call, on the way to a macro
# what pads, repeats, or makes or reads tags: no template of a chat needs it
REMOVED = ("batch", "center", "filesizeformat", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr")
METHODS = (
    *("center", "encode", "escape", "expandtabs", "format_map", "ljust", "rjust", "striptags", "translate", "unescape"),
    "zfill",
)
# filters that make a text of what they are given, and those that compare or look up what is in it
TEXTUAL = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim"),
    *("truncate", "upper", "urlencode", "wordcount"),
)
COMPARING = ("dictsort", "groupby", "max", "min", "sort", "unique")
PIECEMEAL = ("title", "urlencode", "wordcount")  # those that make a list of parts of the text
# tests that look at no more than what kind of thing a value is
OF_KINDS = (
    *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping", "none"),
    *("number", "sameas", "sequence", "string", "true", "undefined"),
)
SPLITS = ("split", "rsplit", "splitlines")  # methods that make a list of a text


class _Spent(threading.local):
    """What a prompt took by now, in the thread that makes it."""

    until = math.inf  # of the clock
    made = 0  # bytes, for one text
    output = 0  # characters of it


class Bounded(ImmutableSandboxedEnvironment):
    """A sandbox that looks at the clock, and at all that is made; `TemplateError` for too much."""

    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "/", "//"})
    intercepted_unops = frozenset({"-", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
        self._spent = _Spent()
        for name in REMOVED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters = {name: self._bounded(name, each) for name, each in {**self.filters, **FILTERS}.items()}
        self.filters |= WATCHING
        tests: dict[str, Any] = self.tests | TESTS
        self.tests |= {name: self._walking(each) for name, each in tests.items() if name not in OF_KINDS}
        self.globals |= GLOBALS

    def begin(self) -> None:
        """A prompt begins."""
        self._spent.until = time.monotonic() + LONGEST

    def begin_text(self) -> None:
        """One of the texts that a prompt takes begins: what it makes is counted anew, and the time goes on."""
        self._spent.made = 0
        self._spent.output = 0

    def require(self, size: float, most: int = LARGEST) -> None:
        """Raise `TemplateError` when time is up, or for something of this size."""
        if time.monotonic() > self._spent.until:
            raise TemplateError(f"it takes more than {LONGEST:g} seconds")
        if size > most:
            raise TemplateError(f"it makes or reads something of the size {size:.3g}, the most is {most}")

    def count(self, size: int) -> None:
        """So many bytes more were made, or are about to be."""
        self.require(0)
        self._spent.made += size
        if self._spent.made > MOST:
            raise TemplateError(f"it makes more than {MOST >> 20} MB on its way")

    def counted(self, value: Any, each: int = 0) -> Any:
        """The value, after it was counted; `each` of its entries is new too, and has so many bytes."""
        self.count(bytes_of(value, each))
        return self._entries(value) if _is_iterator(value) else value

    def bounded(self, value: Any) -> Any:
        """The value, which Python is about to compare, to hash or to write: none of that looks at the clock."""
        value = _listed(value)
        self.require(extent(value))
        return value

    def output(self, value: Any) -> str:
        """The text of a value, a part of the prompt."""
        self.require(self._spent.output + extent(value))
        text = str(value)
        self.count(ENTRY if text is value else ENTRY + bytes_of(text))
        self._spent.output += len(text)
        self.require(self._spent.output)
        return text

    def _entries(self, values: Iterator[Any]) -> Iterator[Any]:
        """What an iterator gives, counted before anyone keeps it."""
        for value in values:
            self.count(CHARACTER)
            yield value

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same filter, for what is not too large, and with its result counted."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # behind what jinja2 gives it

        @wraps(function)
        def bounded(*args: Any, **options: Any) -> Any:
            value = args[first]
            others = map(self.bounded, args[first + 1 :])
            if name in TEXTUAL or name in COMPARING:
                value = self.bounded(value)
            if isinstance(value, str) and (name not in TEXTUAL or name in PIECEMEAL):
                self.require(CHARACTER * len(value), MOST)
            if isinstance(value, list | tuple | dict):
                self.count(ENTRY * len(value))
            named = {key: self.bounded(each) for key, each in options.items()}
            return self.counted(function(*args[:first], value, *others, **named), CHARACTER)

        return bounded

    def _walking(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """The same test, for what is not too large."""
        first = 1 if hasattr(test, "jinja_pass_arg") else 0

        @wraps(test)
        def bounded_test(*args: Any, **options: Any) -> Any:
            named = {key: self.bounded(each) for key, each in options.items()}
            return test(*args[:first], *map(self.bounded, args[first:]), **named)

        return bounded_test

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As jinja2 does, with a look at all that is made where jinja2 asks no environment."""
        parsed = super()._parse(source, name, filename)
        return _Watched().visit(parsed)  # type: ignore[no-any-return]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        self.require(size_of_operator(operator, left, right))
        return self.counted(super().call_binop(context, operator, left, right))

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        """See `SandboxedEnvironment`."""
        return self.counted(super().call_unop(context, operator, arg))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See `SandboxedEnvironment`."""
        return super().getitem(obj, self.bounded(argument))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 has it
        """See `SandboxedEnvironment`; of what is called, macros alone are templates, which are watched."""
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if not isinstance(__obj, Macro):
            args = tuple(map(__self.bounded, args))
            kwargs = {key: __self.bounded(each) for key, each in kwargs.items()}
        if isinstance(owner, list | tuple | Set):
            __self.bounded(owner)
        if isinstance(owner, str):
            __self.require(size_of_call(owner, name, args))
            __self.require(steps_of_call(owner, name, [*args, *kwargs.values()]), STEPS)
            __self.require(CHARACTER * len(owner) if name in SPLITS else 0, MOST)
            __self.count(bytes_of(owner))
        __self.count(COPIES * ENTRY * (len(args) + len(kwargs)))
        return __self.counted(super().call(__context, __obj, *args, **kwargs), CHARACTER)

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
            texts.append(_under(OUTPUT, text))
        node.nodes = texts
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.expr = _bounded(node.expr)
        for each in node.ops:
            each.expr = _bounded(each.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.key = _bounded(node.key)
        return node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(COUNTED, node, CHARACTER)

    visit_Dict = visit_List  # noqa: N815 - as jinja2 has it

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(COUNTED, node, CHARACTER) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return _under(COUNTED, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_AssignBlock(self, node: nodes.AssignBlock | nodes.FilterBlock) -> nodes.Node:  # noqa: N802 - as jinja2
        """See `NodeTransformer`."""
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, COUNTED, [], [], None, None, lineno=node.lineno)
        return node

    visit_FilterBlock = visit_AssignBlock  # noqa: N815 - as jinja2 has it

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> list[nodes.Node]:  # noqa: N802 - as jinja2 has it
        """See `NodeTransformer`."""
        self.generic_visit(node)
        nothing = nodes.Const(None, lineno=node.lineno)
        return [nodes.ExprStmt(_under(COUNTED, nothing), lineno=node.lineno), node]

    visit_CallBlock = visit_Macro  # noqa: N815 - as jinja2 has it


def _under(name: str, node: Any, *values: int) -> nodes.Filter:
    """What a filter of ours makes of a node."""
    args: list[nodes.Expr] = [nodes.Const(value, lineno=node.lineno) for value in values]
    return nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)


def _bounded(node: nodes.Expr) -> nodes.Expr:
    """The value of a node, looked at before Python walks through it; what the template spells out is small."""
    return node if isinstance(node, nodes.Const) else _under(ITERATED, node)


def _is_iterator(value: Any) -> bool:
    """Whether a value gives others one by one; that of a loop is counted by its turns."""
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def _listed(value: Any) -> Any:
    """An iterator as a list, whose size is known."""
    return list(value) if _is_iterator(value) else value
