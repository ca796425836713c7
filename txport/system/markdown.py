"""Untrusted names in Markdown: escaped, so that they contain neither markup nor HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from txport.system.terminal import one_line

SPECIAL = re.compile(r"[\\`*_\[\]|#~]")


def plain(text: str) -> str:
    """Return the text in one line, escaped so that Markdown shows it literally."""
    return html.escape(SPECIAL.sub(lambda found: "\\" + found[0], one_line(text)), quote=False)


def code(text: str) -> str:
    """Format text as inline code; the fence is longer than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{one_line(text)}{space}{fence}"


def line(cells: Iterable[str]) -> str:
    """Format one row of a table."""
    return f"| {' | '.join(map(plain, cells))} |"
