"""Texts that a generating model can't take: `--errors` and `--truncate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from txport.cli.guard import echo
from txport.cli.options import F, is_given
from txport.cli.texts import tell_cut
from txport.errors import NoRoomError, TextError, UnsupportedError

FLAGS = {"errors": "--errors"}  # of generating models alone
NOT_OF_TEXTS = ("prefixes", "batch_size", "batch_tokens", "continuous")  # options that don't change what a model takes

Place = Callable[[int], str]  # number of a text, from 1 -> where it was read


def bulk_options(command: F) -> F:
    """Add `--errors`, `--truncate` and `--resume`."""
    errors = (
        "Texts that the model can't take: end with an error, or write an empty line, or the error in a last column."
    )
    again = "Go on where an interrupted run with the same texts and options ended: FILE.partial keeps its outputs."
    command = click.option("--resume", is_flag=True, help=again)(command)
    command = truncate_option(command)
    kinds = click.Choice(["fail", "skip", "column"])
    return click.option("--errors", type=kinds, default="fail", show_default=True, help=errors)(command)


def truncate_option(command: F) -> F:
    """Add `--truncate`."""
    cut = "Cut texts that are too long: the end of a text, or of the longer one of a pair, the beginning of a prompt."
    return click.option("--truncate", is_flag=True, help=cut)(command)


def places(files: Sequence[Path], counts: Sequence[int], arguments: Sequence[str]) -> Place:
    """Return a function that names the file and line of a text; "" if it is the only argument."""

    def place(number: int) -> str:
        if arguments:
            return f"text {number}" if len(arguments) > 1 else ""
        for file, count in zip(files, counts, strict=True):
            if number <= count:
                return f"{file}, line {number}"
            number -= count
        return f"standard input, line {number}"

    return place


def require_fit(truncate: bool) -> None:
    """Raise `UnsupportedError` for --truncate with texts that can't be cut."""
    if truncate and (others := [flag for name, flag in (("as_ids", "--ids"), ("as_chat", "--chat")) if is_given(name)]):
        raise UnsupportedError(f"--truncate cuts plain texts; it can't be combined with {others[0]}")


class Bulk:
    """The texts of a run: cut if that is wanted, and checked before the first one is generated if all are known."""

    def __init__(self, place: Place, errors: str, truncate: bool, done: int = 0) -> None:
        self._place = place
        self.errors = errors
        self.truncates = truncate
        self._done = done  # texts before the first
        self.truncated = 0

    def texts(
        self, model: object, options: Mapping[str, object], source: Iterable[str], total: int | None
    ) -> Iterable[str]:
        """Return the texts to generate for; raise if one is wrong and all are known."""
        model = copy.copy(model)  # not watched: texts are encoded once more here
        options = {name: value for name, value in options.items() if name not in NOT_OF_TEXTS}
        if self.truncates:
            source = (self._cut(text, model, options) for text in source)
        if total is None or self.errors != "fail":
            return source
        return list(self._checked(source, model, options))

    def _checked(self, source: Iterable[str], model: Any, options: Mapping[str, object]) -> Iterator[str]:
        for number, text in enumerate(source, 1):
            try:
                model.check(text, **options)
            except (TextError, NoRoomError) as error:
                raise type(error)(self._named(number, str(error))) from error
            yield text

    def _cut(self, text: str, model: Any, options: Mapping[str, object]) -> str:
        try:
            cut: str = model.truncate(text, **options)
        except (TextError, NoRoomError):  # told when the text is encoded
            return text
        self.truncated += cut != text
        return cut

    def tell(self, number: int, error: str) -> None:
        """End the run by the error of a text, or print it on standard error, as `--errors` says."""
        if self.errors == "fail":
            raise TextError(self._named(number, error))
        if self.errors == "skip":
            echo(f"txport: {self._place(number + self._done) or 'the text'} is skipped: {error}", err=True)

    def _named(self, number: int, error: str) -> str:
        place = self._place(number + self._done)
        return f"{place}: {error}" if place else error

    def end(self) -> None:
        """Print on standard error how many texts were cut."""
        if self.truncated:
            tell_cut(self.truncated)
