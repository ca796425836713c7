"""Text for a terminal: control characters are escaped, and stderr of native code can be held back; signals."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar

# Control characters, line separators, marks and overrides of direction, and halves of pairs, which no encoding takes.
BEYOND_ASCII = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
UNSAFE = re.compile(f"[\0-\x1f{BEYOND_ASCII}]")
BREAKING = re.compile("[\t-\r\x1c-\x1e\x85\u2028\u2029]")  # tabs, and what ends a line for str.splitlines
UNSAFE_IN_JSON = re.compile(f"[{BEYOND_ASCII}]")  # the others are escaped in any JSON
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # Ctrl-C, kill, a terminal that is closed, Ctrl-\
ENDING = tuple(signal.Signals[name] for name in SIGNALS if hasattr(signal, name))  # those that this system has
SHORT = {9: r"\t", 10: r"\n", 13: r"\r"}

owns_stderr = ContextVar("owns_stderr", default=False)  # of the thread that may move the process's stderr for a moment


def percent(share: float, of: str = "") -> str:
    """Return a share as a percentage, from 1,000 % on as a multiple: `24.7 % of its size`, `12.3 times its size`."""
    if abs(share) < 10 or not math.isfinite(share):
        part = f"{100 * share:.3g} %" if math.isfinite(share) else str(share)
        return part + (f" of {of}" if of else "")
    count = f"{share:,.0f}" if 100 <= abs(share) < 1e6 else f"{share:.3g}"
    return f"{count} times" + (f" {of}" if of else "")


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with control characters escaped, such as \x1b, except the characters in `keep`."""
    return UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(ord(found[0])), text)


def unbroken(text: str, keep: str = "") -> str:
    r"""Return a text without line ends and tabs: they are escaped (\n), except those in `keep`."""
    return BREAKING.sub(lambda found: found[0] if found[0] in keep else _escape(ord(found[0])), text)


def one_line(text: str) -> str:
    """Return a printable text with each run of whitespace replaced by one space."""
    return printable(" ".join(text.split()))


def printable_json(text: str) -> str:
    """Return equivalent JSON with unsafe characters escaped."""
    return UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(code: int) -> str:
    return SHORT.get(code) or f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@contextlib.contextmanager
def native_stderr_held() -> Iterator[None]:
    """Hold back the stderr output of native code in this block; drop it if the block raises.

    Does nothing unless this thread owns the process's stderr, as the thread of a command does.
    """
    if not owns_stderr.get() or not hasattr(os, "set_blocking"):
        yield
        return
    try:
        kept = os.dup(2)
        reading, writing = os.pipe()
    except OSError:  # there is no stderr, or no file descriptor left
        yield
        return
    os.set_blocking(writing, False)  # what the pipe can't hold is lost; a write that waits would wait for ever
    os.set_blocking(reading, False)
    os.dup2(writing, 2)
    written = b""
    try:
        yield
        with contextlib.suppress(BlockingIOError):
            written = os.read(reading, 1 << 16)
    finally:
        os.dup2(kept, 2)
        for descriptor in (kept, reading, writing):
            os.close(descriptor)
    if written:
        os.write(2, written)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Block signals for a process that is started in this block: a terminal sends Ctrl-C to all, the parent ends it.

    Signals to this process are delayed until the block ends.
    """
    is_main = threading.current_thread() is threading.main_thread()  # only the main thread can set signal handlers
    if not is_main or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise it is started in the block, and unblocks signals
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)
