"""Reading and writing text: lines of arguments, files and standard input; atomic output files; a progress bar."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from txport.cli.guard import echo, results
from txport.errors import TextError, UnsupportedError
from txport.system.files import staged_file
from txport.system.terminal import printable, printable_json, unbroken

Item = TypeVar("Item")
LONG = 64  # minimum number of texts for a progress bar
LONGEST_LINE = 4_000_000  # bytes; bounds the memory for an input without line ends, and exceeds what any model accepts


def require_one(texts: Sequence[str], files: Sequence[Path]) -> None:
    """Raise `UnsupportedError` for texts from the command line and from files at once."""
    if texts and files:
        raise UnsupportedError("give TEXT or --input, not both")


def open_texts(
    arguments: Sequence[str],
    files: Sequence[Path],
    blank: bool = False,
    counts: list[int] | None = None,
    what: str = "one text",
) -> tuple[Iterable[str], int | None]:
    """Return the texts of the arguments, or of the files, or of standard input, and their number (None: unknown).

    The number of texts in each file is added to `counts`.
    """
    if arguments:
        return arguments, len(arguments)
    if not files:
        if sys.stdin is not None and sys.stdin.isatty():
            echo(f"reading {what} a line from the terminal; end with Ctrl+D (Windows: Ctrl+Z, Enter)", err=True)
        return read_lines(sys.stdin.buffer if sys.stdin else io.BytesIO(), "standard input", blank), None
    parts = [_read_file(file, blank) for file in files]
    if counts is not None:
        counts.extend(map(len, parts))
    texts = [line for part in parts for line in part]
    return texts, len(texts)


def _read_file(path: Path, blank: bool) -> list[str]:
    try:
        with path.open("rb") as stream:
            return list(read_lines(stream, str(path), blank))
    except OSError as error:
        raise TextError(f"{path} can't be read: {error.strerror}") from error


def read_lines(stream: BinaryIO, name: str, blank: bool = False) -> Iterator[str]:
    """Yield UTF-8 lines without line ends; raise `TextError` for a long, binary or (unless `blank`) empty line.

    Also raises `TextError` if there are no lines, or if the stream can't be read.
    """
    number = 0
    for number, raw in enumerate(iter(lambda: _read_line(stream, name), b""), 1):
        if len(raw) > LONGEST_LINE:
            raise TextError(f"{name}, line {number}: longer than {LONGEST_LINE} bytes, expected one text a line")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise TextError(f"{name}, line {number}: not UTF-8 text ({error.reason} at byte {error.start})") from error
        if "\0" in line:
            raise TextError(f"{name}, line {number}: binary data, expected UTF-8 text")
        if not (line.strip() or blank):
            raise TextError(f"{name}, line {number}: the text is empty")
        yield line
    if number == 0:
        raise TextError(f"{name} is empty; give at least one line of text")


def _read_line(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.readline(LONGEST_LINE + 1)
    except OSError as error:
        raise TextError(f"{name} can't be read: {error.strerror}") from error


def split_pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield both texts of lines `text<TAB>target`; raise `TextError` with the number of an invalid line."""
    for number, line in enumerate(lines, 1):
        parts = line.split("\t")
        if len(parts) != 2:
            raise TextError(f"line {number}: expected two texts with a tab between them, got {line[:60]!r}")
        yield parts[0], parts[1]


def draw_texts(pairs: Iterable[tuple[str, str]], count: int, seed: int) -> dict[str, list[str]]:
    """Sample up to `count` texts with this seed, each with all of its targets."""
    targets: dict[str, list[str]] = {}
    for text, target in pairs:
        targets.setdefault(text, []).append(target)
    names = sorted(targets)
    chosen = random.Random(seed).sample(names, min(count, len(names)))  # noqa: S311 - no secret
    return {name: targets[name] for name in sorted(chosen)}


def print_line(line: str, stream: IO[str], *, end: str = "\n", flush: bool = True) -> None:
    """Write a line of data; on a terminal, escape control characters."""
    print(printable(line, keep="\t\n") if stream.isatty() else line, end=end, file=stream, flush=flush)


def print_row(fields: Sequence[str], stream: IO[str], *, raw: bool = False, flush: bool = True) -> None:
    """Write one line of fields, apart by tabs.

    Line ends in a field are escaped unless `raw`, and tabs if there are several fields.
    """
    keep = "\t" if len(fields) == 1 else ""
    print_line("\t".join(each if raw else unbroken(each, keep) for each in fields), stream, flush=flush)


class Rows:
    """Where a command writes the rows of each text; see `print_row`."""

    def __init__(self, raw: bool, flush: bool = False) -> None:
        self.stream: IO[str] = results()
        self.done = 0  # texts whose rows were written before
        self.raw = raw
        self._flush = flush

    def put(self, rows: Iterable[Sequence[str]]) -> None:
        """Write the rows of one text."""
        for row in rows:
            print_row(row, self.stream, raw=self.raw, flush=self._flush)


def tell_unknown(unknown: int, count: int) -> None:
    """Print on standard error how many texts have an empty output, if any."""
    if unknown:
        echo(f"txport: {unknown} of {count} texts have no character of the vocabulary; their output is empty", err=True)


def to_json(values: dict[str, object] | list[object], indent: int | None = None) -> str:
    """Return JSON in which letters of all alphabets are readable, and control characters are escaped."""
    return printable_json(json.dumps(values, indent=indent, ensure_ascii=False))


def print_json(values: dict[str, object], indent: int | None = None) -> None:
    """Write JSON to standard output."""
    print_line(to_json(values, indent), results())


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[IO[str]]:
    """Yield standard output, or a file that is only created if the block ends without an error."""
    if path is None:
        yield results()
        return
    with staged_file(path) as stream:
        yield stream


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a report as indented JSON."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to one .npz file, atomically."""
    import numpy as np

    with open_output(path) as stream:
        np.savez(stream.buffer, **arrays)  # type: ignore[attr-defined]  # of a file


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with open_output(path) as stream:
        stream.write(text)


def with_progress(items: Iterable[Item], total: int | None, output: IO[str] | None = None) -> Iterator[Item]:
    """Yield the items, with a progress bar on stderr if it is a terminal and `total` is at least `LONG` or unknown.

    There is no bar if items are typed in or `output` is printed on a terminal: the bar would overwrite them.
    """
    is_typed = total is None and sys.stdin is not None and sys.stdin.isatty()
    is_read = output is not None and output.isatty()
    if not sys.stderr.isatty() or is_typed or is_read or (total is not None and total < LONG):
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total, description="generating")
