"""Write docs/cli.md from the help of every command: `python -m docs.cli`."""

from __future__ import annotations

from pathlib import Path

import click

from txport.cli import cli

PAGE = Path(__file__).with_name("cli.md")


def render() -> str:
    """The whole page."""
    parts = ["# The command line", _help(cli, "txport")]
    parts += [
        f"## txport {name}\n\n{_help(command, f'txport {name}')}" for name, command in sorted(cli.commands.items())
    ]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100)
    return f"```\n{command.get_help(context)}\n```"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
