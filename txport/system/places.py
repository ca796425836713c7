"""Checks of an output path before writing: its links, open files, mount points and renames."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from txport.errors import OutputError, TxportError, quoted

MAX_LINKS = 40  # as in Linux
MAX_PATH = 4096  # bytes of a path, PATH_MAX of Linux
DESCRIPTORS = re.compile(r"/proc/(?P<process>\d+)(/task/\d+)?/fd|/dev/fd")
WORKING_FOLDER = -100  # AT_FDCWD
EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)


def resolve(path: Path) -> Path:
    """Return `path` with all links resolved, whether it exists or not.

    Raises `OutputError` for links that lead in a circle, or that another user has put into a folder which everybody
    may write to, as the kernel does.
    """
    for step in _follow(path):
        if _is_planted(step):
            raise OutputError(f"{path} goes through a link of another user in {step.parent}; choose another place")
    return Path(os.path.realpath(step))


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
        if reason.errno == errno.ENAMETOOLONG and len(os.fsencode(path)) >= MAX_PATH:  # others: see `stages.told`
            raise error(f"{quoted(str(path))} can't be a path: it is too long") from reason


def descriptor_of(path: Path) -> int | None:
    """Return the file descriptor that `path` names, such as 1 for /dev/stdout or /dev/fd/1; otherwise None."""
    for step in _follow(path):
        found = DESCRIPTORS.fullmatch(str(step.parent))
        if found and step.name.isdigit() and found["process"] in (None, str(os.getpid())):
            return int(step.name)
    return None


def _follow(path: Path) -> Iterator[Path]:
    """Yield the path, then the target of each link in turn; links in parent folders are resolved."""
    require_possible(path, OutputError)
    for _ in range(MAX_LINKS):
        step = Path(os.path.realpath(path.parent)) / path.name
        yield step
        if not step.is_symlink():
            return
        path = step.parent / step.readlink()
    raise OutputError(f"{path} leads through more than {MAX_LINKS} links; choose another place")


def _is_planted(path: Path) -> bool:
    if sys.platform == "win32" or not path.is_symlink():
        return False
    folder = path.parent.stat()
    is_public = bool(folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH)
    return is_public and path.lstat().st_uid not in (os.geteuid(), folder.st_uid)


def is_mount(path: Path) -> bool:
    """Return whether a path without links is a mount point, which can't be renamed."""
    if os.path.ismount(path):
        return True
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    names = (line.split()[4] for line in table.splitlines())
    return str(path) in (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name) for name in names)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; return False if the system or the file system does not support it."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    done: int = rename(WORKING_FOLDER, os.fsencode(one), WORKING_FOLDER, os.fsencode(other), EXCHANGE)
    return done == 0
