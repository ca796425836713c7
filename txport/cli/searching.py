"""The command-line options of search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from txport.cli import bulk, texts
from txport.cli.options import F
from txport.models.options import DEFAULTS, GenerationOptions, Kind, Option, options

IDS = {  # options whose tokens are ids in Python
    "forced_bos_token_id": "--forced-bos-token",
    "forced_eos_token_id": "--forced-eos-token",
    "bad_words_ids": "--bad-words",
    "eos_token_id": "--eos-token",
}
PREFIXES = ("--prefixes", {"metavar": "TOKENS", "default": "", "help": "Tokens at the start of each target."})
TYPES: dict[Kind, Callable[[Option, object], dict[str, object]]] = {  # kind of an option -> its type for click
    "whole": lambda each, default: {
        "type": click.IntRange(None if each.least is None else int(each.least)),
        "default": default,
    },
    "number": lambda each, default: {"type": float, "default": default},
    "switch": lambda each, default: {"is_flag": True},
    "token": lambda each, default: {"metavar": "TOKEN"},
    "tokens": lambda each, default: {"metavar": "TOKENS", "default": ""},
    "sequences": lambda each, default: {"metavar": "TOKENS", "multiple": True},
    "ends": lambda each, default: {"metavar": "TOKEN", "multiple": True},
    "strings": lambda each, default: {"metavar": "TEXT", "multiple": True},
    "choice": lambda each, default: {
        "type": click.Choice([str(choice).lower() for choice in each.choices]),
        "default": None if default is None else str(default).lower(),
    },
}


def _declared() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the flag of each option of a search that the command line has, and how click declares it."""
    for name, each in options(GenerationOptions).items():
        if each.kind in TYPES:
            flag = IDS.get(name, "--" + name.replace("_", "-"))
            needs = "With --json: " if name == "alignment" else ""
            yield flag, {**TYPES[each.kind](each, DEFAULTS[name]), "help": needs + re.sub("`(.*?)`", _flag, each.help)}


def _flag(name: re.Match[str]) -> str:
    return "--" + name[1].replace("_", "-")


SEARCH = [*_declared(), PREFIXES]
NAMED = [*(name for name, _ in SEARCH), "--batch-size", "--batch-tokens", "--source-language", "--target-language"]
FLAGS = {**{flag.removeprefix("--").replace("-", "_"): flag for flag in NAMED}, **IDS}  # by name in Python
ONLY_GENERATING = {
    **{flag.removeprefix("--").replace("-", "_"): flag for flag, _ in SEARCH},
    "continuous": "--continuous",
    "as_stream": "--stream",
    "explained": "--explain",
    **bulk.FLAGS,
    **texts.FLAGS,
    **texts.SPECIAL,
}


def search_options(command: F) -> F:
    """Add the options of search; tokens are written as in the vocabulary, separated by spaces."""
    for name, how in reversed(SEARCH):
        shown = how.get("default") not in (None, "") and not how.get("is_flag")
        command = click.option(name, show_default=shown, **how)(command)
    return command
