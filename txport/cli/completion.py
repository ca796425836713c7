"""Shell completion of arguments."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, shell_complete

from txport.cli import COMPLETE

Items = list[CompletionItem[str]]


@add_completion_class
class Bash(BashComplete):
    """Completion in Bash, which splits words at a colon (`preset:tiny`) and completes only the text after it."""

    name = "bash"

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and that incomplete word, joined at colons."""
        arguments, incomplete = super().get_completion_args()
        words: list[str] = []
        for part in (*arguments, incomplete):
            if words and (part == ":" or words[-1].endswith(":")):
                words[-1] += part
            else:
                words.append(part)
        return words[:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """Return the completions of the text after the last colon of the word."""
        start = incomplete[: incomplete.rfind(":") + 1]
        found = super().get_completions(args, incomplete)
        return [CompletionItem(each.value.removeprefix(start), each.type, each.help) for each in found]


def answer(command: click.Command) -> None:
    """Print the completions and exit if the shell started this process to complete a word."""
    instruction = os.environ.get(COMPLETE)
    if not instruction:
        return
    if instruction.endswith("_source"):  # the user asks for the script of a shell, and sees its errors
        sys.exit(shell_complete(command, {}, "txport", COMPLETE, instruction))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # anything else would appear in the user's prompt
            code = shell_complete(command, {}, "txport", COMPLETE, instruction)
    except Exception:
        code = 1
    sys.exit(code)


def models(context: object, parameter: object, incomplete: str) -> Items:
    """Complete a checkpoint or a bundle: included checkpoints, presets and folders."""
    from txport.checkpoints.folder import PRESET, presets, shipped

    known = presets() if incomplete.startswith(PRESET) else [""]  # presets import PyTorch, which takes a second
    names = [*shipped(), *(PRESET + name for name in known), *_folders_here(incomplete)]
    return _starting(names, incomplete) or folders(context, parameter, incomplete)


def folders(context: object, parameter: object, incomplete: str) -> Items:
    """Complete folders; the shell finds them itself."""
    return [CompletionItem(incomplete, "dir")]


def providers(context: object, parameter: object, incomplete: str) -> Items:
    """Complete the short names of providers."""
    from txport.runtimes import PROVIDERS

    return _starting([*PROVIDERS], incomplete)


def _folders_here(incomplete: str) -> list[str]:
    """Return the visible folders in the working folder; the shell finds hidden and deeper ones."""
    if os.sep in incomplete or incomplete.startswith("."):
        return []
    return sorted(path.name for path in Path().iterdir() if path.is_dir() and not path.name.startswith("."))


def _starting(names: list[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
