"""Sessions in a process made by `fork`: it has none of their threads, for which their destructor waits forever."""

from __future__ import annotations

import ctypes
import os
from typing import Any
from weakref import WeakSet

_sessions: WeakSet[Any] = WeakSet()


def watched(session: Any) -> Any:
    """Return a session, which children of this process will never destroy: not at exit, deletion or replacement."""
    _sessions.add(session)
    return session


def _keep() -> None:
    """Keep the inherited sessions until the process ends; no reference that Python clears at exit would do that."""
    for session in _sessions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _sessions.clear()  # children of this process inherit the count


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_keep)
