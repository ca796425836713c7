"""Files that a command writes: checked before any work is done, and never a file that the command reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import click

from txport.api.folders import files_in
from txport.checkpoints.folder import code_name
from txport.cli.options import SECTION
from txport.errors import OutputError, TextError, TxportError, UnsupportedError
from txport.system.files import is_stream, require_file
from txport.system.paths import require_possible, resolve

STDIN = Path("/dev/stdin")
QUOTE = "'"
ARGUMENT = re.compile(
    r"(?<![\w-])(?:(?P<name>[a-z_]+)=(?P<value>True\b|False\b|'[^']*'|[A-Z]+\b|[\d.e+-]*\d)"
    r"|'[^']*'|\"[^\"]*\"|(?P<bare>[a-z_]+)\b)"
)
ADVICE = re.compile(r"(?<![\w-])(?:'[^']*'|\"[^\"]*\")|(?P<mark>; |, or |: )")  # before each piece of advice
Value = TypeVar("Value")
Read = tuple[str, Path]  # what a file is, in words, and the file


class PossiblePath(click.Path):
    """The type of a parameter that is a path; text that can't be one is an error."""

    error: type[TxportError] = OutputError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise `error` for text that is none."""
        require_possible(value, self.error)
        return super().convert(value, param, ctx)


class InputPath(PossiblePath):
    """The type of a parameter that names a file or folder to read."""

    error = TextError


class OutputFile(PossiblePath):
    """The type of a parameter that names a file to write."""


class OutputFolder(PossiblePath):
    """The type of a parameter that names a folder to create; the command checks it."""


INPUT = InputPath(path_type=Path)
OUTPUT = OutputFile(path_type=Path)
OTHERS = "Options"  # the title of the options without a section
OUTPUT_FOLDER = OutputFolder(path_type=Path)


class Command(click.Command):
    """A command whose parameters of type `OutputFile` are checked before it runs, and whose errors name its flags.

    `arguments` are flags by the names that an `UnsupportedError` has for them.
    """

    def __init__(self, *args: Any, arguments: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arguments = dict(arguments or {})

    def invoke(self, context: click.Context) -> object:
        """Raise `OutputError` or `UnsupportedError` for a file that can't or must not be written."""
        given = [(each, context.params[each.name]) for each in self.params if each.name in context.params]
        files = dict(item for each, paths in given if isinstance(each.type, OutputFile) for item in _files(each, paths))
        folders = {flag_of(each): path for each, path in given if isinstance(each.type, OutputFolder) and path}
        if files:
            named = ((flag_of(each), value) for each, value in given if not isinstance(each.type, OutputFile))
            reads = [read for flag, value in named for read in _read(flag, value)]
            require_outputs(files, folders, [*reads, ("what standard input reads", STDIN)])
        try:
            return super().invoke(context)
        except TxportError as error:
            bare = self._arguments if isinstance(error, UnsupportedError) else {}
            error.args = (self.in_flags(self.followable(str(error)), bare), *error.args[1:])
            raise

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section under its title, and the others last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in (each for each in self.get_params(context) if isinstance(each, click.Option)):
            if (record := option.get_help_record(context)) is not None:
                sections.setdefault(option.__dict__.get(SECTION, OTHERS), []).append(record)
        for title, records in sorted(sections.items(), key=lambda section: section[0] == OTHERS):
            with formatter.section(title):
                formatter.write_dl(records)

    def followable(self, message: str) -> str:
        """Return a message without the advice that names an argument for which this command has no option.

        `export it with target='portable'` names an option of the command that it names.
        """
        marks = [found.start() for found in ADVICE.finditer(message) if found["mark"]]
        for found in ARGUMENT.finditer(message):
            start = max((mark for mark in marks if mark < found.start()), default=None)
            if start is not None and not self._names(found["name"], message[: found.start()]):
                end = min((mark for mark in marks if mark >= found.end()), default=len(message))
                return self.followable(message[:start] + message[end:])
        return message

    def _names(self, argument: str | None, before: str) -> bool:
        """Return whether an argument is an option here, or of a command that the words before it name, or of none."""
        others = _others(self)
        named = [self, *(each for each in others if re.search(rf"\b{each.name}", before))]
        return any(argument in _flags(each) for each in named) or not any(argument in _flags(each) for each in others)

    def in_flags(self, message: str, bare: Mapping[str, str] | None = None) -> str:
        """Return a message with flags instead of arguments of Python; what it quotes stays.

        `force=True` is `--force`, `precision='fp16'` is `--precision fp16`, `weights=False` is `--weights none`:
        options of this command, or of another one. Names without a value are those of `bare`, by default all of its
        `arguments`.
        """
        bare = self._arguments if bare is None else bare
        flags: dict[str, str] = {}
        for one in (*_others(self), self):
            flags |= _flags(one)

        def flag(found: re.Match[str]) -> str:
            if name := found["bare"]:
                return bare.get(name, found[0])
            name, value = found["name"], found["value"]
            if name not in flags:
                return found[0]
            return flags[name] + {"True": "", "False": " none"}.get(value, f" {value.strip(QUOTE)}")

        return ARGUMENT.sub(flag, message)


def _files(option: click.Parameter, paths: Any) -> Iterator[tuple[str, Path]]:
    """Yield the files of an option by its flag; with their paths if there are several."""
    if not isinstance(paths, tuple):
        paths = (paths,) if paths else ()
    for path in paths:
        yield flag_of(option) if len(paths) == 1 else f"{flag_of(option)} {path}", path


def _others(command: click.Command) -> list[click.Command]:
    """Return the other commands of the group of a command that runs."""
    group = click.get_current_context().find_root().command
    return [each for each in group.commands.values() if each is not command] if isinstance(group, click.Group) else []


def _flags(command: click.Command) -> dict[str, str]:
    """Return the flags of a command by the names of arguments in Python."""
    flags = [(each.name or "", flag_of(each)) for each in command.params if isinstance(each, click.Option)]
    return {flag.removeprefix("--").replace("-", "_"): flag for _, flag in flags} | dict(flags)


command = partial(click.command, cls=Command)


def in_flags(value: Value) -> Value:
    """Return a message, or results that have messages, with the flags of the command that runs; see `Command`."""
    context = click.get_current_context(silent=True)
    if context is None or not isinstance(context.command, Command):
        return value
    spoken: Value = _each(context.command.in_flags, value)
    return spoken


def _each(change: Callable[[str], str], value: object) -> Any:
    """Apply `change` to the texts in a value: in lists, dicts and records too."""
    match value:
        case str():
            return change(value)
        case list():
            return [_each(change, item) for item in value]
        case dict():
            return {name: _each(change, item) for name, item in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: _each(change, getattr(value, field.name)) for field in fields(value)})
    return value


def require_outputs(
    files: Mapping[str, Path], folders: Mapping[str, Path] | None = None, reads: Sequence[Read] = ()
) -> None:
    """Raise `OutputError` if a file can't be written, or is one of `reads` or of a bundle or checkpoint.

    `files` and `folders` are paths by option. Raises `UnsupportedError` if two options name the same place. Files can
    be in one of the `folders`, which are created before the files are written.
    """
    given = {**files, **(folders or {})}
    places = {option: resolve(path) for option, path in given.items() if not is_stream(path)}
    for (option, place), (other, same) in combinations(places.items(), 2):
        if place == same:
            raise UnsupportedError(f"{option} and {other} name the same place, {given[option]}; give each its own")
    created = [places[option] for option in folders or {} if option in places]
    for option, path in files.items():
        if option not in places or places[option].parent not in created:
            _spare(option, path, reads)
            require_file(path)


def _spare(option: str, path: Path, reads: Sequence[Read]) -> None:
    """Raise `OutputError` if `path` is a file that is read, or a file of the bundle or checkpoint in its folder."""
    try:
        status = path.stat()
    except OSError:  # there is no file
        return
    around = {above for place in (path.absolute(), resolve(path)) for above in list(place.parents)[:2]}
    owned = ((f"a file of {folder}", file) for folder in sorted(around) for file in files_in(folder))
    for what, file in (*reads, *owned):
        if _is(file, status):
            raise OutputError(f"{path} is {what}, and {option} would replace it; choose another place")


def _is(file: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(file.stat(), status)
    except (OSError, ValueError):  # there is no such file, or the name can't be one
        return False


def _read(flag: str, value: object) -> Iterator[Read]:
    """Yield the files that the value of a parameter names: a file, a file of code, or those of a model's folder."""
    for each in value if isinstance(value, tuple) else (value,):
        if not isinstance(each, str | Path):
            continue
        code = code_name(str(each))
        path = code[0] if code else Path(each)
        if os.path.isdir(path):  # noqa: PTH112 - False for text that can't be a path
            yield from ((f"a file of {each}", file) for file in files_in(path))
        elif os.path.isfile(path):  # noqa: PTH113
            yield f"what {flag} reads", path


def flag_of(parameter: click.Parameter) -> str:
    """Return the flag of an option, or the name of an argument in usage."""
    return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
