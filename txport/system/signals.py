"""The signals that end a command, those that this system has."""

from __future__ import annotations

import signal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # Ctrl-C, kill, a terminal that is closed, Ctrl-\
ENDING: tuple[signal.Signals, ...] = tuple(signal.Signals[name] for name in NAMES if hasattr(signal, name))
