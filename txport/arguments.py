"""What callers of the Python API give, one by one or one a text, taken or refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from txport.errors import AudioError, TextError, UnsupportedError, quoted
from txport.models.audio.facts import Features
from txport.models.tokenizers.base import Unknown
from txport.search.batching import MOST
from txport.search.options import LONGEST_ID
from txport.system.numbers import whole

Text = TypeVar("Text")
Item = TypeVar("Item")


def many(name: str, texts: str | Iterable[str]) -> Iterable[str]:
    """One text is no iterable of letters."""
    if isinstance(texts, str):
        return [texts]
    require_many(name, texts)
    return texts


def require_many(name: str, values: Any) -> None:
    """Raise `TextError` for what can't be read one by one."""
    try:
        if isinstance(values, bytes):
            raise TypeError
        iter(values)
    except TypeError:
        what = "a list or what can be read like one"
        raise TextError(f"{name} must be {what}, got {quoted(values)}") from None


def listed(name: str, values: Iterable[Item]) -> list[Item]:
    """All of what can be read one by one."""
    require_many(name, values)
    return list(values)


def token_ids(what: str, tokens: Any) -> list[int]:
    """Token ids of any kind of sequence, as ints."""
    try:
        return [whole("a token id", token, most=LONGEST_ID) for token in tokens]
    except (TypeError, UnsupportedError):
        raise TextError(f"{what} must be a list of whole numbers, got {quoted(tokens)}") from None


def checked_features(reads: Features, source: Any) -> NDArray[np.float32]:
    """Features as a model reads them; `AudioError` for an array of another shape, or of no numbers."""
    array = np.asarray(source)
    shape = (reads.size, reads.frames)
    if array.shape != shape or array.dtype.kind != "f":
        raise AudioError(f"features must be floats of shape {shape}, got shape {array.shape} and type {array.dtype}")
    if not np.isfinite(array).all():
        raise AudioError("features contain NaN or infinity")
    found: NDArray[np.float32] = array.astype(np.float32, copy=False)
    return found


def paired(texts: Iterable[Text], others: Iterable[Item], what: str) -> Iterator[tuple[Text, Item]]:
    """Each text with its own; `TextError` if there are fewer or more of these."""
    following = iter(others)
    for number, text in enumerate(texts, 1):
        try:
            other = next(following)
        except StopIteration:
            raise TextError(f"got fewer {what} than texts: text {number} has none") from None
        yield text, other
    if next(following, None) is not None:
        raise TextError(f"got more {what} than texts")


def require_unknown(unknown: str) -> None:
    """Raise `UnsupportedError` for a word that does not say what to do with unknown characters."""
    if not isinstance(unknown, str) or unknown not in get_args(Unknown):
        raise UnsupportedError(f"unknown must be one of {', '.join(get_args(Unknown))}, got {quoted(unknown)}")


def sizes(batch_size: int, batch_tokens: int | None = None) -> tuple[int, int | None]:
    """The sizes of a batch as ints; `UnsupportedError` for those that none can have."""
    return whole("batch_size", batch_size, 1, MOST), None if batch_tokens is None else whole(
        "batch_tokens", batch_tokens, 1
    )
