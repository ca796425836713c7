"""File locks that the system releases when their process ends, even if it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
