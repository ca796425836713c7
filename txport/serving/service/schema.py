"""Fields of a request's body, each declared once as JSON Schema; checks and the OpenAPI description follow."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txport.errors import quoted
from txport.models.options import DEFAULTS, MAX_ID, GenerationOptions, Option
from txport.models.options import options as declared_options
from txport.serving.service.errors import InvalidRequestError

Schema = Mapping[str, object]
STRING: Schema = {"type": "string"}
SWITCH: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
WORDS = {
    "string": "a string", "boolean": "true or false", "integer": "a whole number", "number": "a number",
    "object": "an object", "array": "a list",
}  # fmt: skip
TYPES: Mapping[str, type] = {"string": str, "boolean": bool, "object": Mapping, "array": list}
SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def text(least: int = 0, **more: object) -> Schema:
    """Return the schema of a string with at least so many characters."""
    return {**STRING, **({"minLength": least} if least else {}), **more}


def words(*choices: str) -> Schema:
    """Return the schema of one of some strings."""
    return {**STRING, "enum": list(choices)}


def whole(least: int, most: int | None = None) -> Schema:
    """Return the schema of a whole number within bounds."""
    return {**WHOLE, "minimum": least, **({} if most is None else {"maximum": most})}


def number(least: float, most: float) -> Schema:
    """Return the schema of a number within bounds."""
    return {**NUMBER, "minimum": least, "maximum": most}


def listed(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    """Return the schema of a list."""
    bounds = {"minItems": least} if least else {}
    return {"type": "array", "items": items, **bounds, **({} if most is None else {"maxItems": most})}


def either(*schemas: Schema) -> Schema:
    """Return the schema of a value of one of several kinds."""
    return {"anyOf": list(schemas)}


@dataclass(frozen=True)
class Field:
    """A field of a body. `sets` names the option that it sets, if it is another name for that option.

    `only` is the one value that is accepted, besides null, of a field whose other values no model here can honour.
    """

    name: str
    schema: Schema
    help: str
    is_required: bool = False
    sets: str = ""
    only: tuple[object, ...] = ()

    @property
    def described(self) -> Schema:
        """The JSON Schema of the field, with its description; a field that is not required may be null."""
        schema: Schema = {"enum": [*self.only]} if self.only else self.schema
        if not self.is_required:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return {**schema, "description": self.help}


@dataclass(frozen=True)
class Body:
    """The fields of a body, by name."""

    fields: tuple[Field, ...]

    def read(self, values: object) -> dict[str, object]:
        """Return the values that are given, without those that are null.

        Raises `InvalidRequestError` with the name of a field that is unknown, missing, or has a value of another kind.
        """
        if not isinstance(values, Mapping):
            raise InvalidRequestError(f"the body must be a JSON object, got {quoted(values)}")
        known = {each.name: each for each in self.fields}
        if (strange := next((name for name in values if name not in known), None)) is not None:
            what = f"unknown field {quoted(strange)}; supported: {', '.join(known)}"
            raise InvalidRequestError(what, param=str(strange)[:100])
        for name, each in known.items():
            if each.is_required and values.get(name) is None:
                raise InvalidRequestError(f"the field {name!r} is missing", param=name)
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            _require(known[name], value)
        return given

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the body."""
        required = [each.name for each in self.fields if each.is_required]
        properties = {each.name: each.described for each in self.fields}
        return {
            "type": "object", "properties": properties, "additionalProperties": False,
            **({"required": required} if required else {}),
        }  # fmt: skip


def _require(declared: Field, value: object) -> None:
    if declared.only:
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in declared.only):
            accepted = " or ".join(json.dumps(each) for each in declared.only)
            what = f"{declared.name} is not supported, except {accepted} or null; got {quoted(value)}"
            raise InvalidRequestError(what, param=declared.name, code="unsupported_value")
    elif not fits(value, declared.schema):
        what = f"{declared.name} must be {in_words(declared.schema)}; got {quoted(value)}"
        raise InvalidRequestError(what, param=declared.name)


def fits(value: object, schema: Schema) -> bool:
    """Return whether a JSON value has the kind and lies within the bounds of a schema."""
    if isinstance(choices := schema.get("anyOf"), list):
        return any(fits(value, each) for each in choices)
    kind = str(schema["type"])
    if kind in ("integer", "number"):
        return _is_number(value, schema)
    if not isinstance(value, TYPES[kind]):
        return False
    if isinstance(chosen := schema.get("enum"), list):
        return value in chosen
    if isinstance(value, str | list | Mapping) and not _lies(len(value), schema, SIZES[kind]):
        return False
    items = schema.get("items")
    return not isinstance(items, Mapping) or not isinstance(value, list) or all(fits(each, items) for each in value)


def _is_number(value: object, schema: Schema) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if schema["type"] == "integer" and isinstance(value, float):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    above = schema.get("exclusiveMinimum")
    below = schema.get("exclusiveMaximum")
    return (
        _lies(value, schema, "imum")
        and (not isinstance(above, int | float) or value > above)
        and (not isinstance(below, int | float) or value < below)
    )


def _lies(value: float, schema: Schema, what: str) -> bool:
    least = schema.get(f"min{what}")
    most = schema.get(f"max{what}")
    return (not isinstance(least, int | float) or value >= least) and (
        not isinstance(most, int | float) or value <= most
    )


def in_words(schema: Schema) -> str:
    """Return what a schema accepts, in words."""
    if isinstance(choices := schema.get("anyOf"), list):
        return " or ".join(map(in_words, choices))
    if isinstance(chosen := schema.get("enum"), list):
        return "one of " + ", ".join(json.dumps(each) for each in chosen)
    found = WORDS[str(schema["type"])]
    if isinstance(items := schema.get("items"), Mapping):
        found += f" of items that are {in_words(items)}"
    return found + "".join(_bounds(schema))


def _bounds(schema: Schema) -> Iterable[str]:
    names = {
        "minimum": "of at least", "maximum": "of at most", "exclusiveMinimum": "above", "exclusiveMaximum": "below",
        "minItems": "with a length of at least", "maxItems": "with a length of at most",
        "minLength": "with a length of at least", "maxLength": "with a length of at most",
        "maxProperties": "with a length of at most",
    }  # fmt: skip
    found = [f"{said} {schema[name]}" for name, said in names.items() if name in schema]
    if found:
        yield " " + " and ".join(found)


ID: Schema = whole(0)
STOP = text(1, maxLength=1024)
IN_FLAGS = re.compile(r"  \[.*?\]")  # what a help says of the command line alone
MAX_ROWS = 64  # of one request, so that no caller takes all memory
MAX_STOPS, MAX_ITEMS = 64, 1024  # strings of `stop`, and items of other lists, which each step looks at
LIMITED = {"beams": MAX_ROWS, "nbest": MAX_ROWS}
KINDS: Mapping[str, Schema] = {
    "whole": WHOLE,
    "number": NUMBER,
    "switch": SWITCH,
    "token": ID,
    "tokens": listed(ID, most=MAX_ITEMS),
    "sequences": listed(listed(ID, 1, MAX_ITEMS), most=MAX_ITEMS),
    "ends": either(ID, listed(ID, 1, MAX_ITEMS)),
    "strings": either(STOP, listed(STOP, most=MAX_STOPS)),
    "biases": listed({"type": "array"}, most=MAX_ITEMS),
    "decay": {"type": "array", "minItems": 2, "maxItems": 2},
}


def search_fields(*without: str) -> tuple[Field, ...]:
    """Return a field for each option of a search, under its own name, derived from its declaration."""
    found = declared_options(GenerationOptions)
    return tuple(
        Field(name, _schema_of(name, each), IN_FLAGS.sub("", each.help))
        for name, each in found.items()
        if name not in without
    )


def _schema_of(name: str, option: Option) -> Schema:
    if option.kind == "choice":
        spoken = [each for each in option.choices if isinstance(each, str)]
        return either(SWITCH, words(*spoken)) if len(spoken) < len(option.choices) else words(*spoken)
    most = LIMITED.get(name, option.most)
    most = MAX_ID if option.kind == "whole" and most is None and name != "seed" else most
    bounds = {
        "minimum": option.least, "maximum": most, "exclusiveMinimum": option.above, "exclusiveMaximum": option.below,
    }  # fmt: skip
    return {**KINDS[option.kind], **{key: bound for key, bound in bounds.items() if bound is not None}}


def options_of(values: Mapping[str, object], fields: Iterable[Field]) -> dict[str, object]:
    """Return the options of a search among the values of a body, each under its own name.

    Raises `InvalidRequestError` for two fields that set the same option.
    """
    names = {each.name: each.sets or each.name for each in fields}
    found: dict[str, object] = {}
    for name, value in values.items():
        if (option := names.get(name, "")) not in DEFAULTS:
            continue
        if option in found:
            same = [other for other in values if names.get(other) == option]
            raise InvalidRequestError(f"{' and '.join(same)} set the same option; give one of them", param=name)
        found[option] = value
    return found
