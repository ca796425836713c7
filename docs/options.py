"""Write what the JavaScript package knows of the options of a search: `python -m docs.options`.

The options are those of `txport.models.options`: a table, which the package checks values by, and their types.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import txport
from txport.models.options import DEFAULTS, GenerationOptions, Kind, Option, options
from txport.search.options import SearchOptions

PACKAGE = Path(txport.__file__).parent / "runtimes" / "js" / "src"
TABLE, TYPES = PACKAGE / "search" / "table.js", PACKAGE / "index.d.ts"
HEAD = """/** The options of a search, as txport in Python declares them; `python -m docs.options` writes this file. */

/**
 * @typedef {object} Option
 * @property {string} kind what its values are
 * @property {any} [value] the default
 * @property {string} [range] the bounds in words
 * @property {number} [least]
 * @property {number} [most]
 * @property {number} [above]
 * @property {number} [below]
 * @property {string} [needs] the option without which it has no effect
 * @property {any[]} [choices]
 */

"""
KINDS: dict[Kind, str] = {
    "whole": "number",
    "number": "number",
    "switch": "boolean",
    "token": "number",
    "tokens": "number[]",
    "sequences": "number[][]",
    "ends": "number | number[]",
    "strings": "string | string[]",
    "biases": "[number[], number][]",
    "decay": "[number, number]",
}
SEED = "number | bigint"
BLOCK = re.compile(r"(export interface SearchOptions \{\n).*?(\n\})", re.DOTALL)


def table() -> str:
    """Return the module with the table of options."""
    here, absent = {}, {}
    for name, option in options(GenerationOptions).items():
        if option.in_javascript:
            here[name] = _entry(name, option)
        else:
            absent[name] = DEFAULTS[name]
    absent["scores"] = SearchOptions.scores
    parts = [
        f"/** @type {{Record<string, Option>}} */\nexport const OPTIONS = {_object(here)};",
        f"/** Options of Python alone, with the values without effect. */\nexport const NOT_HERE = {_object(absent)};",
    ]
    return HEAD + "\n\n".join(parts) + "\n"


def types() -> str:
    """Return the file of types, with the options of a search replaced."""
    lines = []
    for name, option in options(GenerationOptions).items():
        if option.in_javascript:
            if option.help:
                lines.append(f"  /** {_sentence(option.help)} */")
            lines.append(f"  {name}?: {_type(name, option)};")
    return BLOCK.sub(lambda found: found[1] + "\n".join(lines) + found[2], TYPES.read_text(encoding="utf-8"))


def _entry(name: str, option: Option) -> dict[str, Any]:
    bounds = {"least": option.least, "most": option.most, "above": option.above, "below": option.below}
    entry = {"kind": "seed" if name == "seed" else option.kind, "value": DEFAULTS[name], "range": option.range}
    entry |= {**bounds, "needs": option.needs, "choices": option.choices}
    return {key: value for key, value in entry.items() if value not in (None, "") and (key, value) != ("choices", ())}


def _object(entries: dict[str, Any]) -> str:
    lines = (f"  {name}: {_value(value)}," for name, value in entries.items())
    return "{\n" + "\n".join(lines) + "\n}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, float):
        return re.sub(r"e([+-])0", r"e\1", f"{value:g}").replace("e+", "e")
    return json.dumps(value)


def _type(name: str, option: Option) -> str:
    if option.kind == "choice":
        both = {True, False} <= {*option.choices}
        words = [json.dumps(choice) for choice in option.choices if isinstance(choice, str)]
        return " | ".join([*(["boolean"] if both else []), *words])
    return SEED if name == "seed" else KINDS[option.kind]


def _sentence(text: str) -> str:
    """Return the help of the command line without what concerns the command line."""
    return re.sub(r"  \[.*?\]", "", text)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    TYPES.write_text(types(), encoding="utf-8")
