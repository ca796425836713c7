"""Sandbox of chat templates, which limits access, time and memory.

Imports jinja2; therefore imported only when a template is used.
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

LONGEST = 10.0  # seconds per prompt
MOST = 1 << 27  # bytes that a template may create per text, kept or not
COPIES = 4  # copies of the arguments of a macro call
# filters that pad, repeat, or write or read tags: no chat template needs them
REMOVED = ("batch", "center", "filesizeformat", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr")
METHODS = (
    *("center", "encode", "escape", "expandtabs", "format_map", "ljust", "rjust", "striptags", "translate", "unescape"),
    "zfill",
)
# filters that convert their input to text, and those that compare or look up its entries
TEXTUAL = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim"),
    *("truncate", "upper", "urlencode", "wordcount"),
)
COMPARING = ("dictsort", "groupby", "max", "min", "sort", "unique")
PIECEMEAL = ("title", "urlencode", "wordcount")  # filters that make a list of parts of the text
# tests that read only the type of a value
OF_KINDS = (
    *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping", "none"),
    *("number", "sameas", "sequence", "string", "true", "undefined"),
)
SPLITS = ("split", "rsplit", "splitlines")  # methods that split a text into a list


class _Spent(threading.local):
    """Time and memory used by a prompt so far, per thread."""

    until = math.inf  # deadline, on the monotonic clock
    made = 0  # bytes created for one text
    output = 0  # characters of the text


class Bounded(ImmutableSandboxedEnvironment):
    """A sandbox that limits time and the size of all values that are created; raises `TemplateError` beyond them."""

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
        """Start the time limit of a prompt."""
        self._spent.until = time.monotonic() + LONGEST

    def begin_text(self) -> None:
        """Reset the counts for one of the texts of a prompt; the time limit stays."""
        self._spent.made = 0
        self._spent.output = 0

    def require(self, size: float, most: int = LARGEST) -> None:
        """Raise `TemplateError` if the time is up, or if `size` is above `most`."""
        if time.monotonic() > self._spent.until:
            raise TemplateError(f"it takes more than {LONGEST:g} seconds")
        if size > most:
            raise TemplateError(f"it makes or reads something of the size {size:.3g}, the most is {most}")

    def count(self, size: int) -> None:
        """Count `size` bytes that were created or are about to be; raise `TemplateError` beyond the limit."""
        self.require(0)
        self._spent.made += size
        if self._spent.made > MOST:
            raise TemplateError(f"it makes more than {MOST >> 20} MB on its way")

    def counted(self, value: Any, each: int = 0) -> Any:
        """Count a value and return it; `each`: bytes of each of its entries, if they are new too."""
        self.count(bytes_of(value, each))
        return self._entries(value) if _is_iterator(value) else value

    def bounded(self, value: Any) -> Any:
        """Check the size of a value and return it, before Python compares, hashes or writes it without a time limit."""
        value = _listed(value)
        self.require(extent(value))
        return value

    def output(self, value: Any) -> str:
        """Return the text of a value, which is a part of the prompt, and count it."""
        self.require(self._spent.output + extent(value))
        text = str(value)
        self.count(ENTRY if text is value else ENTRY + bytes_of(text))
        self._spent.output += len(text)
        self.require(self._spent.output)
        return text

    def _entries(self, values: Iterator[Any]) -> Iterator[Any]:
        """Yield the entries of an iterator, and count each before it is kept."""
        for value in values:
            self.count(CHARACTER)
            yield value

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that checks the size of its inputs and counts its result."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # after the argument that jinja2 passes

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
        """Return a test that checks the size of its inputs."""
        first = 1 if hasattr(test, "jinja_pass_arg") else 0

        @wraps(test)
        def bounded_test(*args: Any, **options: Any) -> Any:
            named = {key: self.bounded(each) for key, each in options.items()}
            return test(*args[:first], *map(self.bounded, args[first:]), **named)

        return bounded_test

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse like jinja2, and add checks where jinja2 does not call the environment."""
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
        """See `SandboxedEnvironment`. Arguments are checked, except those of macros, which are templates themselves."""
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
        """See `SandboxedEnvironment`, which checks each attribute; the size of the result is checked too."""
        found = super().wrap_str_format(value)
        if found is None:
            return None
        text = value.__self__

        def bounded(*args: Any, **options: Any) -> Any:
            self.require(size_of_format(text, text.count("{"), [*args, *options.values()]))
            return found(*args, **options)

        return bounded


class Generation(ext.Extension):
    """The `generation` tag, which marks the model's messages for training; here its content is output unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Any) -> Any:
        """See `Extension`."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Watched(NodeTransformer):
    """Adds filters that check what jinja2 creates without calling the environment."""

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
    """Return a node that applies one of txport's filters to a node."""
    args: list[nodes.Expr] = [nodes.Const(value, lineno=node.lineno) for value in values]
    return nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)


def _bounded(node: nodes.Expr) -> nodes.Expr:
    """Return a node whose value is checked before Python walks through it; constants are small."""
    return node if isinstance(node, nodes.Const) else _under(ITERATED, node)


def _is_iterator(value: Any) -> bool:
    """Return whether a value is an iterator; loop contexts are excluded, their iterations are counted."""
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def _listed(value: Any) -> Any:
    """Return an iterator as a list, whose size is known; other values unchanged."""
    return list(value) if _is_iterator(value) else value
