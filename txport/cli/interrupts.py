"""Signals that end a command while it runs: they raise KeyboardInterrupt when that is safe, until the command ends."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from txport.system.terminal import ENDING

SOON = 0.02  # seconds


class Interrupt:
    """The signal handler of one command; `came`: a signal raised an error, `is_over`: the exit code is decided."""

    came = False
    is_over = False  # a later interrupt would only break the message

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._hook = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt; during the import of a package, later: native code may abort at an exception."""
        if self.is_over:
            return
        if _is_importing(frame):
            _send_soon(number)
        else:
            self.came = True
            raise KeyboardInterrupt

    def begin(self) -> None:
        """Install the handlers; from now on, signals raise KeyboardInterrupt, also during this call."""
        for number in _answered():
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self)
        sys.unraisablehook = _again

    def end(self, is_own: bool) -> None:
        """Restore the handlers; if the process belongs to the command (`is_own`), ignore interrupts until it ends."""
        self.is_over = True
        if is_own:
            for number in _answered():
                signal.signal(number, signal.SIG_IGN)
        else:
            sys.unraisablehook = self._hook
            for number, handler in self._before.items():
                signal.signal(number, handler)


def _answered() -> list[signal.Signals]:
    """Return the signals to handle: those that are not ignored, and none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module of another package is being imported: its code runs, and its spec is still initializing."""
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        spec = frame.f_globals.get("__spec__")
        if frame.f_code.co_name == "<module>" and package != "txport" and getattr(spec, "_initializing", False):
            return True
        frame = frame.f_back
    return False


def _send_soon(number: int) -> None:
    timer = threading.Timer(SOON, _send, [number])
    timer.daemon = True
    timer.start()


def _send(number: int) -> None:
    """Send the signal to the main thread, which wakes up if the system has `pthread_kill`."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def _again(unraisable: Any) -> None:
    """Send an interrupt again if it was lost in a destructor or a callback of native code."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _send_soon(signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)
