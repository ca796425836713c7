"""Values that no author of a file has thought of."""

from __future__ import annotations

from typing import Any

ESCAPE = "\x1b[31mred\x07\x9b2J\u202egnp.exe"
TAG = "<img src=x onerror=alert(1)>"
NAME = f"{ESCAPE}{TAG}|`a`\r\nsecond line"
DIGITS = "9" * 5_000
DEEP = 200_000
ZEROS = 100_000_000

# What JSON can't be told to Python's writer: placeholders that `spell` replaces.
HUGE_NUMBER, DEEP_LIST, DEEP_OBJECT = "@huge@", "@deep list@", "@deep object@"

WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**40,
    2**63,
    2**64,
    10**30,
    1e308,
    -0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../outside/precious.bin",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "a" * 100_000,
    NAME,
    [],
    [[]],
    [1, "a", None],
    {},
    {"": {}},
    {"a": [1]},
    HUGE_NUMBER,
    DEEP_LIST,
    DEEP_OBJECT,
)


def spell(text: str, depth: int = DEEP) -> str:
    """JSON with its placeholders replaced."""
    for name, raw in (
        (HUGE_NUMBER, DIGITS),
        (DEEP_LIST, "[" * depth + "]" * depth),
        (DEEP_OBJECT, '{"a":' * depth + "1" + "}" * depth),
    ):
        text = text.replace(f'"{name}"', raw)
    return text
