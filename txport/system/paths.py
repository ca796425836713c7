"""Checks of a path before something is read or written there, and errors of writing."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from txport.errors import OutputError, TxportError, quoted
from txport.system.machine import is_out_of_memory

MAX_PATH = 4096  # bytes of a path, PATH_MAX of Linux
ELSEWHERE = "choose another place"


def resolve(path: Path) -> Path:
    """Return `path` with all links resolved, whether it exists or not; raise `OutputError` for links in a circle."""
    require_possible(path, OutputError)
    with told(path, ELSEWHERE), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # the system also refuses links that other users have put into a folder for all, such as /tmp
    return Path(os.path.realpath(path))


def require_utf8(path: Path, error: type[TxportError]) -> None:
    """Raise `error` for a path that is not UTF-8: the libraries that read weights and graphs can't open it."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as reason:
        raise error(
            f"{path}: its name is not UTF-8, and libraries that read models can't open it; rename it"
        ) from reason


def require_possible(path: Path | str, error: type[TxportError]) -> None:
    """Raise `error` for text that is the path of no file: with a null byte or a lone surrogate, or too long."""
    try:
        os.lstat(path)
    except ValueError as reason:  # also a UnicodeEncodeError
        what = "a null byte" if "\0" in str(path) else "a lone surrogate"
        raise error(f"{quoted(str(path))} can't be a path: it has {what}") from reason
    except OSError as reason:
        if reason.errno == errno.ENAMETOOLONG and len(os.fsencode(path)) >= MAX_PATH:  # others: see `told`
            raise error(f"{quoted(str(path))} can't be a path: it is too long") from reason


@contextlib.contextmanager
def told(path: Path, hint: str) -> Iterator[None]:
    """Convert `OSError` in the block to `OutputError`, except out-of-memory errors."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        if is_out_of_memory(error):
            raise
        raise OutputError(f"{path} can't be written: {error.strerror or error}; {hint}") from error
