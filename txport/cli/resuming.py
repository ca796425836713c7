"""`run --resume`: outputs are kept beside OUT, in OUT.partial, until all are there.

The first line of OUT.partial says what the outputs depend on: the bundle, the texts and the options. Each other line is
a JSON string, all that OUT gets for one text. A line that a killed process has not completed is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from txport.api.folders import files_in
from txport.cli.outputs import flag_of
from txport.cli.textio import Rows, open_output
from txport.errors import OutputError, UnsupportedError
from txport.models.names import MANIFEST
from txport.system.files import hash_of, is_stream, sha256
from txport.system.paths import resolve, told
from txport.system.stages import locked
from txport.version import __version__

PARTIAL = ".partial"
AGAIN = "or remove it to begin again"
# parameters that change no output, or that the record names by a hash
FREE = ("bundle", "text", "inputs", "output", "resume", "threads", "workers", "checkpoint", "trust_code")
BATCHES = ("batch_size", "batch_tokens", "continuous")


@contextlib.contextmanager
def open_rows(path: Path | None, texts: Sequence[str] | None, is_resumed: bool, rows: Rows) -> Iterator[Rows]:
    """Yield where to write rows: `rows`, or rows that are kept in OUT.partial.

    A file at `path` is written only if the block ends without an error. `texts` are all texts of the run, or None if
    they are not known, or what is written is not lines. The first `done` of them have their outputs already. Raises
    `UnsupportedError` for --resume of a run that keeps nothing, `OutputError` for an OUT.partial of another run.
    """
    if path is None or texts is None or is_stream(path):
        if is_resumed:
            raise UnsupportedError("--resume needs TEXT or --input, and --output with a file of lines")
        with open_output(path) as rows.stream:
            yield rows
        return
    partial = Partial(resolve(path), texts)
    with partial.opened(is_resumed) as file:
        kept = _Kept(rows.raw, file, partial.done, path)
        try:
            yield kept
            with open_output(path) as stream:
                stream.writelines(partial.outputs(file))
        except BaseException as error:
            if kept.done:
                error.add_note(f"{partial.path} keeps {kept.done} of {len(texts)} outputs, and --resume goes on there")
            else:
                partial.path.unlink()
            raise
        partial.path.unlink()


class _Kept(Rows):
    """Rows that go to OUT.partial: those of a text together."""

    def __init__(self, raw: bool, file: BinaryIO, done: int, place: Path) -> None:
        super().__init__(raw)
        self.stream = io.StringIO()
        self._file = file
        self._place = place
        self.done = done

    def put(self, rows: Iterable[Sequence[str]]) -> None:
        """Write the rows of one text."""
        self.stream = io.StringIO(newline="")
        super().put(rows)
        with told(self._place, "choose another place"):
            self._file.write(json.dumps(self.stream.getvalue()).encode() + b"\n")
            self._file.flush()
        self.done += 1


@contextlib.contextmanager
def _closing(file: BinaryIO) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.close()


class Partial:
    """The file OUT.partial of a run over `texts`; `done` of them have their outputs in it."""

    def __init__(self, place: Path, texts: Sequence[str]) -> None:
        self.path = place.with_name(place.name + PARTIAL)
        self.done = 0
        self._total = len(texts)
        self._record = _record(texts)
        self._header = json.dumps(self._record).encode() + b"\n"

    @contextlib.contextmanager
    def opened(self, is_resumed: bool) -> Iterator[BinaryIO]:
        """Yield the file, to be written at its end; raise `OutputError` if it is not of this run, or not resumed."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with told(self.path, "choose another place"):
            file = os.fdopen(os.open(self.path, flags, 0o600), "r+b")
        # each output is flushed; on a full disk, the rest of a buffer would raise a second error at the end
        with _closing(file), locked(self.path, without=True) as is_ours:
            if not is_ours:
                raise OutputError(f"{self.path} is being written by another run; choose another place")
            with told(self.path, "choose another place"):
                self._continue(file, is_resumed)
            yield file

    def _continue(self, file: BinaryIO, is_resumed: bool) -> None:
        """Count complete outputs and remove what follows them."""
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        first = file.readline() if is_regular else b"?"
        if not (self._header.startswith(first) or _is_record(first, self._record)):
            raise OutputError(f"{self.path} is not what an interrupted run has left; choose another place")
        size = len(first)
        for line in file:
            if not _is_output(line):
                break
            size += len(line)
            self.done += 1
        if self.done:
            self._require_same(json.loads(first), is_resumed)
        file.seek(size if self.done else 0)
        file.truncate()
        if not self.done:
            self._begin(file)

    def _begin(self, file: BinaryIO) -> None:
        try:
            file.write(self._header)
            file.flush()
        except BaseException:  # a full disk, say
            self.path.unlink()
            raise

    def _require_same(self, found: dict[str, Any], is_resumed: bool) -> None:
        given, other = self._record["options"], found.pop("options")
        changed = [what for what, value in found.items() if value != self._record[what]]
        changed += [flag for flag in given if given[flag] != other.get(flag)]
        if changed:
            raise OutputError(f"{self.path} was begun with another {', '.join(changed)}; give the same, {AGAIN}")
        if not is_resumed:
            amount = f"{self.done} of {self._total} outputs"
            raise OutputError(f"{self.path} keeps {amount} of an interrupted run; --resume goes on there, {AGAIN}")

    def outputs(self, file: BinaryIO) -> Iterator[str]:
        """Yield the outputs of all texts."""
        file.seek(len(self._header))
        return map(json.loads, file)


def _record(texts: Sequence[str]) -> dict[str, Any]:
    """Return what the outputs of this command depend on."""
    context = click.get_current_context()
    values = context.params
    named = (each for each in context.command.params if each.name in values)
    options = {flag_of(each): str(values[each.name]) for each in named if each.name not in (*FREE, *BATCHES)}
    given = hashlib.sha256()
    for text in texts:
        given.update(json.dumps(text).encode())
    record = {"bundle": _bundle(values["bundle"]), "input": given.hexdigest()}
    return {"version of txport": __version__, **record, "options": options}


def _bundle(name: str) -> str:
    from txport.api.locate import find_path

    folder = find_path(name)
    if (manifest := folder / MANIFEST).is_file():
        return sha256(manifest)
    return hash_of({str(file): sha256(file) for file in files_in(folder)})


def _is_record(line: bytes, like: Mapping[str, object]) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == like.keys() and isinstance(found["options"], dict)


def _is_output(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), str)
    except (ValueError, RecursionError):
        return False
