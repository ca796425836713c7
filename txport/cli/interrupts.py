"""Ctrl-C and SIGTERM while a command runs: a KeyboardInterrupt, where it does no harm, and nothing once all is done."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOON = 0.02  # seconds


class Interrupt:
    """What answers the signals of one command: whether one came, and whether the command's end is decided."""

    came = False
    is_over = False  # set where the end is decided: a later interrupt would only break the line that tells it

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._hook = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, but after the import of a package: native code may abort the process at an error."""
        if self.is_over:
            return
        if _is_importing(frame):
            _send_soon(number)
        else:
            self.came = True
            raise KeyboardInterrupt

    def begin(self) -> None:
        """From here on an interrupt is a KeyboardInterrupt, also in the midst of this."""
        for number in _answered():
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self)
        sys.unraisablehook = _again

    def end(self, is_own: bool) -> None:
        """Give the handlers back; in a process that ends with its command, ignore interrupts until it is gone."""
        self.is_over = True
        if is_own:
            for number in _answered():
                signal.signal(number, signal.SIG_IGN)
        else:
            sys.unraisablehook = self._hook
            for number, handler in self._before.items():
                signal.signal(number, handler)


def _answered() -> list[signal.Signals]:
    """Those that whoever started this process wants answered, where this thread may choose."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a package of others is at its import: code of a module runs, and Python says that it is not complete."""
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
    """To the main thread, which it wakes up where the system can do that."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def _again(unraisable: Any) -> None:
    """An interrupt that came in a destructor or a callback of native code was swallowed there: send it once more."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _send_soon(signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)
