"""Locks that die with their process: what is locked is in use, the rest was left by processes that were killed."""

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
    """Lock a file or folder for the block; -> whether it is ours: not if another holds it, or it is gone.

    With `wait`, wait for the other. Where the system or the file system has no locks, the answer is `without`. A lock
    stays with what it locks when that is renamed.
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
