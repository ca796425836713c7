"""Tensor rules as TOML tables: each is one operation, with the fields of its class in `weights/rules.py`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from txport.errors import ConfigError, quoted
from txport.models.rules import Pad, Permute, Reshape, Rule, Settle, Split

KINDS: tuple[type[Any], ...] = get_args(Rule)
OPERATIONS = {each.__name__.lower(): each for each in KINDS if each is not Settle}
REGEXES = ("pattern", "patterns")
LARGEST = 1 << 24  # largest magnitude of a number


def parse_rule(table: object) -> Rule:
    """Return the rule of a table, such as `{rename = {pattern = "^a", to = "b"}}`.

    If only one field has no default, its value can replace the table: `{drop = "^a"}`. Raises `ConfigError`.
    """
    if not isinstance(table, Mapping) or len(table) != 1:
        raise ConfigError(f"a rule must be one of {', '.join(OPERATIONS)}, got {quoted(table)}")
    ((operation, given),) = table.items()
    if operation not in OPERATIONS:
        raise ConfigError(f"unknown rule {quoted(operation)}; there are {', '.join(OPERATIONS)}")
    kind = OPERATIONS[operation]
    fields = {each.name: each for each in dataclasses.fields(kind)}
    required = [name for name, each in fields.items() if each.default is dataclasses.MISSING]
    values = given if isinstance(given, Mapping) else {required[0]: given} if len(required) == 1 else None
    if values is None:
        raise ConfigError(f"{operation} must be a table with {', '.join(required)}, got {quoted(given)}")
    if strange := [name for name in values if name not in fields]:
        raise ConfigError(f"{operation} has no {quoted(strange[0])}; it has {', '.join(fields)}")
    if missing := [name for name in required if name not in values]:
        raise ConfigError(f"{operation} needs {' and '.join(missing)}")
    hints = get_type_hints(kind)
    rule: Rule = kind(**{name: _value(f"{operation}.{name}", value, hints[name]) for name, value in values.items()})
    _require_sound(operation, rule)
    return rule


def written(rule: Rule) -> str:
    """Return a rule as a line of TOML, without fields that have their default."""
    kind = type(rule)
    fields = [each for each in dataclasses.fields(kind) if getattr(rule, each.name) != each.default]
    values = {each.name: toml(getattr(rule, each.name)) for each in fields}
    if len(values) == 1 and "pattern" in values:
        return f"{kind.__name__.lower()} = {values['pattern']}"
    return f"{kind.__name__.lower()} = {{ {', '.join(f'{name} = {value}' for name, value in values.items())} }}"


def toml(value: object) -> str:
    """Return a text, number or tuple of these in TOML; texts are written literally where possible."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    if not isinstance(value, str):
        return repr(value)
    if "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(name: str, value: Any, hint: Any) -> Any:
    """Return a value with the type of its field; raise `ConfigError` for any other."""
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{name} must be a list of {inner.__name__}, got {quoted(value)}")
        return tuple(_value(f"{name}[{at}]", each, inner) for at, each in enumerate(value))
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < LARGEST else math.nan
    is_number = hint in (int, float) and type(value) is hint
    if type(value) is not hint or (is_number and not (math.isfinite(value) and abs(value) < LARGEST)):
        raise ConfigError(f"{name} must be {hint.__name__}, got {quoted(value)}")
    return value


def _require_sound(operation: str, rule: Rule) -> None:
    """Raise `ConfigError` for a rule that can't be applied to any name or tensor."""
    patterns = [getattr(rule, name) for name in REGEXES if hasattr(rule, name)]
    targets = getattr(rule, "to", ())
    for pattern in [one for each in patterns for one in ((each,) if isinstance(each, str) else each)]:
        try:
            re.compile(pattern)
            for to in (targets,) if isinstance(targets, str) else targets:
                re.sub(f"{pattern}|", to, "")  # also matches the empty text, therefore `to` is parsed
        except (re.error, IndexError, RecursionError, OverflowError) as error:
            raise ConfigError(f"{operation} {quoted(pattern)} is no regular expression: {error}") from error
    if isinstance(rule, Split) and (rule.groups < 1 or len(rule.to) < 2):
        raise ConfigError(f"{operation} must have two names or more, and groups of at least 1")
    if isinstance(rule, Permute):
        if sorted(rule.order) != list(range(len(rule.view))):
            raise ConfigError(f"{operation}.order must be the numbers of the {len(rule.view)} axes of its view")
        if rule.view.count(-1) > 1 or any(size < 1 for size in rule.view if size != -1):
            raise ConfigError(f"{operation}.view must be sizes, one of which may be -1, got {quoted(rule.view)}")
    if isinstance(rule, Reshape) and (rule.shape.count(-1) > 1 or any(size < 1 for size in rule.shape if size != -1)):
        raise ConfigError(f"{operation}.shape must be sizes, one of which may be -1, got {quoted(rule.shape)}")
    if isinstance(rule, Pad) and rule.rows < 1:
        raise ConfigError(f"{operation}.rows must be at least 1")
    if getattr(rule, "row", 0) < 0:
        raise ConfigError(f"{operation}.row must be at least 0")
