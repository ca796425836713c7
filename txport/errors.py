"""Errors of txport. A message states what was given, what was expected and what to do; each class has an exit code."""

from __future__ import annotations

LONGEST_QUOTE, LONGEST_REASON = 100, 300  # characters of a quoted value, and of another library's message


def quoted(value: object) -> str:
    """Return `repr(value)` for an error message, cut to `LONGEST_QUOTE` characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def brief(error: object) -> str:
    """Return the message of another library's error in one line, cut to `LONGEST_REASON` characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."


class TxportError(Exception):
    """The base class of all errors; the CLI prints the message in one line and exits with `exit_code`."""

    exit_code = 2


class ConfigError(TxportError, ValueError):
    """A configuration is invalid."""


class TooLargeError(ConfigError):
    """The sizes of a model are beyond any machine."""

    exit_code = 1


class CheckpointError(TxportError, ValueError):
    """Weights do not fit their configuration, or a checkpoint can't be read."""


class BundleError(TxportError, ValueError):
    """A bundle is incomplete, altered, or in a format that this version does not support."""


class RunError(BundleError):
    """A graph was loaded, but fails at run time."""


class TextError(TxportError, ValueError):
    """Text is invalid for the model."""


class UnknownTextError(TextError):
    """Text is empty, or nothing in it is in the vocabulary."""


class LongTextError(TextError):
    """A text has more tokens, or characters, than the model takes."""


class AudioError(TxportError, ValueError):
    """Audio is invalid for the model."""


class TokenError(TxportError, LookupError):
    """A token id is not in the vocabulary of the tokenizer."""


class OutputError(TxportError, OSError):
    """A path can't be written."""


class UnsupportedError(TxportError, ValueError):
    """An option or a combination of options is not supported; the message states the reason."""


class NoRoomError(UnsupportedError):
    """A prompt leaves too little room for the requested tokens."""


class ParityError(TxportError, AssertionError):
    """The results of an exported model differ from PyTorch's."""

    exit_code = 1


class UnavailableError(TxportError, RuntimeError):
    """Something is not installed or not available; the message states the fix."""

    exit_code = 3


class OutOfMemoryError(UnavailableError, MemoryError):
    """Memory is not enough; the message states how much is needed, or the fix."""

    exit_code = 1


class EngineError(TxportError, RuntimeError):
    """A live engine is closed, or has failed."""

    exit_code = 1


class QueueFullError(EngineError):
    """The queue of a live engine is full; `retry_after` is an estimate in seconds of when it will not be."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(EngineError, TimeoutError):
    """The deadline of a request passed before its result was complete."""


class LoadError(UnavailableError):
    """The installed runtime can't load a graph."""
