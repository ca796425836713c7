"""Write docs/cli.md from the help of every command: `python -m docs.cli`."""

from __future__ import annotations

from pathlib import Path

import click

from txport.cli import cli

PAGE = Path(__file__).with_name("cli.md")


def render() -> str:
    """The whole page."""
    top = click.Context(cli, info_name="txport", terminal_width=100, **cli.context_settings)
    parts = ["# The command line", _block(cli.get_help(top))]
    for name, command in sorted(cli.commands.items()):
        parts += [f"## txport {name}", _block(command.get_help(click.Context(command, parent=top, info_name=name)))]
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```\n{text}\n```"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
