"""Environment of chat templates: that of transformers, with limits of time and length.

Imports jinja2; therefore imported only when a template is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, ext, meta, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from txport.errors import BundleError, TextError, brief, quoted
from txport.text.origin import TURNS, changing, switches
from txport.text.usage import MAX_LENGTH, MAX_SECONDS

MAX_BITS = 1 << 16  # of a power
# errors that a template raises for messages that it does not expect or that are too large for Python
RAISED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)
DEADLINE = "the deadline"  # a variable whose name no template can write


class ChatTemplate:
    """A template and what its text says of it; raises `BundleError` if it can't be used.

    `variables` has the names that it reads, and `sought` the texts that it searches messages for, `switches` those by
    which it only chooses; `changes_texts` is whether it may change what messages say.
    """

    def __init__(self, template: str) -> None:
        sandbox = Sandbox()
        try:
            parsed = sandbox.parse(template)
            self._template = sandbox.from_string(template)
            self.changes_texts = next(changing(parsed), None) is not None
            self.switches = switches(parsed)
            self.variables = meta.find_undeclared_variables(parsed) - sandbox.globals.keys()
            called = {call.node.name for call in parsed.find_all(nodes.Call) if isinstance(call.node, nodes.Name)}
            unknown = sorted(called & self.variables)
        except (TemplateError, SyntaxError, *RAISED) as error:
            raise BundleError(f"the chat template can't be used: {brief(error)}") from error
        if unknown:
            raise BundleError(f"the chat template can't be used: it calls {quoted(unknown[0])}, which is not there")
        constants = [each.value for each in _sought(parsed) if isinstance(each, nodes.Const)]
        self.sought = {each for each in constants if isinstance(each, str)}

    def render(self, variables: Mapping[str, object], until: float) -> str:
        """Return the prompt that the template writes; raise `TextError` after `until`, or if it is refused or too long.

        The limits are checked before each piece of the prompt, turn of a loop, call and operator.
        """
        pieces = []
        length = 0
        try:
            for piece in self._template.generate({**variables, DEADLINE: until}):
                length += len(piece)
                _require(length, MAX_LENGTH)
                pieces.append(piece)
        except TemplateError as error:
            raise TextError(f"the chat template does not take these messages: {brief(error)}") from error
        except RAISED as error:
            raise TextError(f"the chat template does not take these messages: {brief(repr(error))}") from error
        return "".join(pieces)


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with what transformers adds to it, which raises `TemplateError` at the limits."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
        self.filters |= {"tojson": _to_json, TURNS: _turns}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse like jinja2, and let each loop check the deadline."""
        parsed = super()._parse(source, name, filename)
        for loop in [*parsed.find_all(nodes.For)]:
            loop.iter = nodes.Filter(loop.iter, TURNS, [], [], None, None, lineno=loop.lineno)
        return parsed

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:  # noqa: N805 - as jinja2 has it
        """See `SandboxedEnvironment`."""
        _require_time(__context)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """See `SandboxedEnvironment`."""
        _require_time(context)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _require(left.bit_length() * right, MAX_BITS)
        elif operator == "+":
            _require(_length(left) + _length(right), MAX_LENGTH)
        elif operator == "*":
            times = [each for each in (left, right) if isinstance(each, int)]
            _require((_length(left) + _length(right)) * max(times, default=0), MAX_LENGTH)
        return super().call_binop(context, operator, left, right)


class Generation(ext.Extension):
    """The `generation` tag, which marks the model's messages for training; here its content is output unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Any) -> Any:
        """See `Extension`."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _sought(parsed: nodes.Template) -> Iterator[nodes.Expr]:
    """Yield what a template searches texts for: left operands of `in`, and arguments of methods such as `split`."""
    for compare in parsed.find_all(nodes.Compare):
        if any(each.op in ("in", "notin") for each in compare.ops):
            yield compare.expr
    for call in parsed.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            yield from call.args


@pass_context
def _turns(context: Context, values: Iterable[object]) -> Iterator[object]:
    for value in values:
        _require_time(context)
        yield value


def _require_time(context: Context) -> None:
    if time.monotonic() > context.resolve(DEADLINE):
        raise TemplateError(f"it takes more than {MAX_SECONDS:g} seconds")


def _require(size: int, most: int) -> None:
    if size > most:
        raise TemplateError(f"it makes something of the size {size}, the most is {most}")


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _to_json(
    value: object, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as for a model: HTML characters are not escaped."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: Any) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
