"""Ctrl-C and SIGTERM while a command runs: a KeyboardInterrupt, where it does no harm, and nothing once all is done."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOON = 0.02  # seconds


class Interrupt:
    """What answers a signal, and whether one came."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, but after the import of a package: native code may abort the process at an error."""
        if _is_importing(frame):
            _send_soon(number)
        else:
            self.came = True
            raise KeyboardInterrupt


@contextlib.contextmanager
def heeded(to_the_end: bool) -> Iterator[Interrupt]:
    """In this block an interrupt is a KeyboardInterrupt; after it none counts, if the process is at its end."""
    interrupt = Interrupt()
    before = {number: signal.signal(number, interrupt) for number in _answered()}
    hook = sys.unraisablehook
    sys.unraisablehook = _again
    try:
        yield interrupt
    finally:
        if to_the_end:
            ignore()
        else:
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore() -> None:
    """What happens is decided: a second interrupt would only break the line that tells it."""
    for number in _answered():
        signal.signal(number, signal.SIG_IGN)


def _answered() -> list[signal.Signals]:
    """Those that whoever started this process wants answered, where this thread may choose."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code.co_name == "<module>" and package not in ("txport", "__main__"):
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
