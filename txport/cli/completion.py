"""Completion by the shell: what a word on the command line may become."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, shell_complete

VARIABLE = "_TXPORT_COMPLETE"
Items = list[CompletionItem[str]]


@add_completion_class
class Bash(BashComplete):
    """Bash breaks words at a colon, as in preset:tiny, and completes only what stands after it."""

    name = "bash"

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one to complete, and that one as far as it is typed, each of them whole."""
        arguments, incomplete = super().get_completion_args()
        words: list[str] = []
        for part in (*arguments, incomplete):
            if words and (part == ":" or words[-1].endswith(":")):
                words[-1] += part
            else:
                words.append(part)
        return words[:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """What may stand after the last colon of the word."""
        start = incomplete[: incomplete.rfind(":") + 1]
        found = super().get_completions(args, incomplete)
        return [CompletionItem(each.value.removeprefix(start), each.type, each.help) for each in found]


def answer(command: click.Command) -> None:
    """Exit with what the shell asked for, if it started this process for that."""
    if instruction := os.environ.get(VARIABLE):
        sys.exit(shell_complete(command, {}, "txport", VARIABLE, instruction))


def models(context: Any, parameter: Any, incomplete: str) -> Items:
    """A checkpoint or a bundle: the names of what ships and of presets, and folders."""
    from txport.models.names import PRESET, presets, shipped

    known = presets() if incomplete.startswith(PRESET) else [""]  # they take PyTorch a second to import
    names = [*shipped(), *(PRESET + name for name in known), *_folders_here(incomplete)]
    return _starting(names, incomplete) or folders(context, parameter, incomplete)


def folders(context: Any, parameter: Any, incomplete: str) -> Items:
    """Folders, which the shell finds by itself."""
    return [CompletionItem(incomplete, "dir")]


def providers(context: Any, parameter: Any, incomplete: str) -> Items:
    """Short names of providers."""
    from txport.runtimes import PROVIDERS

    return _starting([*PROVIDERS], incomplete)


def _folders_here(incomplete: str) -> list[str]:
    """Those that can stand in one list with names; what lies deeper or is hidden, the shell finds."""
    if os.sep in incomplete or incomplete.startswith("."):
        return []
    return sorted(path.name for path in Path().iterdir() if path.is_dir() and not path.name.startswith("."))


def _starting(names: list[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
