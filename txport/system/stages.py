"""Stages: temporary paths of files and folders until they are complete, and cleanup after killed processes.

A stage is a hidden path next to its target, locked by its process. A stage without a lock was left by a killed
process; the next process that writes to the same target removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.errors import OutputError
from txport.system.locks import locked
from txport.system.machine import is_out_of_memory
from txport.system.progress import Progress, silent

PARTIAL, OLD = "partial", "old"  # a stage, and the old version that the stage with the same number replaces


@contextmanager
def staged(place: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Create a stage next to `place` with `make`, yield it locked, and remove it at the end if it is still there."""
    is_ours = False
    while not is_ours:
        stage = place.with_name(f".{place.name}.{PARTIAL}-{secrets.token_hex(8)}")
        try:
            make(stage)
            with locked(stage, without=True) as is_ours:  # another process may have removed it, before it was locked
                if is_ours:
                    yield stage
        finally:
            remove(stage)


def recover(place: Path, progress: Progress = silent) -> None:
    """Remove or put back what killed processes left next to `place`; stages in use stay."""
    if restore(place):
        progress(f"put back {place}, which a command that was killed had moved aside")
    for path in _beside(place, PARTIAL):
        with contextlib.suppress(OSError), locked(path, without=False) as is_ours:
            if is_ours:
                remove(path)
                progress(f"removed {path}, left by a command that was killed")
    for path in _beside(place, OLD):
        if not partner(path).exists():
            remove(path)


def restore(place: Path) -> bool:
    """Put back a folder that a killed process had moved aside; return whether there was one."""
    for path in _beside(place, OLD):
        with locked(partner(path), wait=True, without=True):  # a process that is alive moves its new folder in
            if path.is_dir() and not os.path.lexists(place):
                path.rename(place)
                return True
    return False


def clean(folder: Path) -> None:
    """Run `recover` for every target in a folder for which there is a stage."""
    stages = (re.fullmatch(_hidden("(.+)", PARTIAL), name) for name in _names(folder))
    for name in {found[1] for found in stages if found}:
        recover(folder / name)


def _beside(place: Path, kind: str) -> list[Path]:
    pattern = re.compile(_hidden(re.escape(place.name), kind))
    return [place.with_name(name) for name in _names(place.parent) if pattern.fullmatch(name)]


def _hidden(name: str, kind: str) -> str:
    return rf"\.{name}\.{kind}-[0-9a-f]{{16}}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - a folder of many files is read quickly
    except OSError:
        return []


def partner(path: Path) -> Path:
    """Return the path to which the old version of a stage is moved, or the stage of such a path."""
    name, _, number = path.name.rpartition("-")
    name, _, kind = name.rpartition(".")
    return path.with_name(f"{name}.{OLD if kind == PARTIAL else PARTIAL}-{number}")


def resemble(new: Path, old: Path) -> None:
    """Copy the mode of `old` to `new`, and its owner and group if permitted."""
    status = old.stat()
    if sys.platform != "win32":
        for owner, group in ((-1, status.st_gid), (status.st_uid, -1)):
            with contextlib.suppress(OSError):
                os.chown(new, owner, group)
    new.chmod(stat.S_IMODE(status.st_mode))


def remove(path: Path) -> None:
    """Remove a file or folder if it exists, even if an interrupt arrives meanwhile."""
    try:
        _remove_now(path)
    except BaseException:
        _remove_now(path)
        raise


def _remove_now(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextmanager
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
