"""Tables of pages in docs that a command writes, between the lines `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


def split_page(page: Path, name: str) -> tuple[str, str]:
    """Return the text up to the first line of a table, and from its last one on; both lines included."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not found or not last:
        raise click.ClickException(f"{page} has no lines {begin.strip()} and {end}")
    return before + begin, end + after


def write_table(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what is between the two lines of a table."""
    before, after = split_page(page, name)
    page.write_text(before + "".join(f"{line}\n" for line in lines) + after, encoding="utf-8")
