"""Stages: hidden folders next to a target, in which its new version is made until it is complete.

A stage is locked by its process. A stage without a lock was left by a killed process; the next process that writes to
the same target, or misses it, removes the stage.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from txport.system.progress import Progress, logged

Result = TypeVar("Result")

NEW, OLD = "new", "old"  # in a stage: what is made, and the folder that it replaces, while it is moved aside
WORKING_FOLDER, EXCHANGE = -100, 2  # AT_FDCWD, and RENAME_EXCHANGE of renameat2(2)


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """Yield the path at which to make what becomes `place`; it is in a private stage, which is removed at the end."""
    stage = place.with_name(f".{place.name}.partial-{secrets.token_hex(8)}")
    try:
        stage.mkdir(0o700)
        with locked(stage, without=True):
            yield stage / NEW
    finally:
        to_its_end(partial(_end, stage, place))


def recover(place: Path, progress: Progress = logged) -> None:
    """Put back what killed processes moved aside to replace `place`, and remove their stages; those in use stay."""
    for stage in sorted(place.parent.glob(f".{glob.escape(place.name)}.partial-{'[0-9a-f]' * 16}")):
        is_moving = (stage / OLD).is_dir()  # a living process will be at its end in no time
        with contextlib.suppress(OSError), locked(stage, wait=is_moving, without=is_moving) as is_ours:
            if is_ours:
                is_back = to_its_end(partial(_end, stage, place))
                what = f"put back {place}, moved aside" if is_back else f"removed {stage}, left"
                progress(f"{what} by a command that was killed")


def _end(stage: Path, place: Path) -> bool:
    """Remove a stage; return True if it had the old version of `place`, which was missing: that is put back."""
    is_missing = (stage / OLD).is_dir() and not os.path.lexists(place)
    if is_missing:
        (stage / OLD).rename(place)
    shutil.rmtree(stage, ignore_errors=True)
    return is_missing


def to_its_end(step: Callable[[], Result]) -> Result:
    """Run a step that can be repeated; if an interrupt arrives meanwhile, repeat it, then raise."""
    try:
        return step()
    except BaseException:
        step()
        raise


def replace_folder(new: Path, place: Path) -> None:
    """Replace the folder `place` by the staged folder `new`, with mode and owner of the old one."""
    resemble(new, place)
    if not exchange(new, place):
        place.rename(new.with_name(OLD))
        new.rename(place)


def resemble(new: Path, old: Path) -> None:
    """Copy the mode of `old` to `new`, and its owner and group if permitted."""
    status = old.stat()
    if sys.platform != "win32":
        for owner, group in ((-1, status.st_gid), (status.st_uid, -1)):
            with contextlib.suppress(OSError):
                os.chown(new, owner, group)
    new.chmod(stat.S_IMODE(status.st_mode))


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; return False if the system or the file system does not support it."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError):  # of a system other than Linux
        return False
    done: int = rename(WORKING_FOLDER, os.fsencode(one), WORKING_FOLDER, os.fsencode(other), EXCHANGE)
    return done == 0


if sys.platform != "win32":
    import fcntl


@contextmanager
def locked(path: Path, *, wait: bool = False, without: bool) -> Iterator[bool]:
    """Lock a file or folder for the block; yield False if another process has the lock or the path is gone.

    With `wait`, wait for the other process. If the system or the file system has no locks, yield `without`. The lock
    stays with the file or folder when it is renamed.
    """
    if sys.platform == "win32":
        yield without
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _lock(descriptor, path, wait, without)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, wait: bool, without: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # NFS and others
        return without
