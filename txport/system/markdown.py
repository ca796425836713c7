"""Names of others in Markdown: shown as they are, so that none of them is markup or HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from txport.system.terminal import one_line

SPECIAL = re.compile(r"[\\`*_\[\]|#~]")


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return html.escape(SPECIAL.sub(lambda found: "\\" + found[0], one_line(text)), quote=False)


def code(text: str) -> str:
    """Text as code; its fence is longer than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{one_line(text)}{space}{fence}"


def line(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(plain, cells))} |"
