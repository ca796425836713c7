"""Errors that say what was given, what was expected and what to do. One exit code each."""

from __future__ import annotations

LONGEST_QUOTE, LONGEST_REASON = 100, 300  # characters of what was found, and of another library's message


def quoted(value: object) -> str:
    """What was found, as an error message shows it: as Python writes it, and cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def brief(error: object) -> str:
    """What another library says of an error, in one line that can be read."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."


class TxportError(Exception):
    """Any error of ours; the CLI prints it in one line and exits with `exit_code`."""

    exit_code = 2


class ConfigError(TxportError, ValueError):
    """A configuration that no model can have."""


class CheckpointError(TxportError, ValueError):
    """Weights that do not fit their configuration, or a checkpoint that can't be read."""


class BundleError(TxportError, ValueError):
    """A bundle that is incomplete, altered, or of a format that this version does not know."""


class RunError(BundleError):
    """A graph that its runtime loads, and that fails while it runs."""


class TextError(TxportError, ValueError):
    """Text that the model can't take."""


class UnknownTextError(TextError):
    """Text of which a model knows nothing, or that is empty."""


class AudioError(TxportError, ValueError):
    """Audio that the model can't take."""


class TokenError(TxportError, LookupError):
    """A token id for which a tokenizer has no token."""


class OutputError(TxportError, OSError):
    """A place that can't be written."""


class UnsupportedError(TxportError, ValueError):
    """A combination that makes no sense, with the reason."""


class ParityError(TxportError, AssertionError):
    """An exported model that does not compute what PyTorch computes."""

    exit_code = 1


class UnavailableError(TxportError, RuntimeError):
    """Something that is not installed or not present here, with the fix."""

    exit_code = 3


class LoadError(UnavailableError):
    """A graph that the runtime here can't load."""
