"""Validate arguments of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from txport.errors import AudioError, TextError, UnsupportedError, quoted
from txport.models.audio import Features
from txport.models.options import MAX_ID
from txport.search.batching import MOST
from txport.system.numbers import whole
from txport.text.base import Unknown

Text = TypeVar("Text")
Item = TypeVar("Item")


def many(name: str, texts: str | Iterable[Text]) -> Iterable[str | Text]:
    """Return the texts as an iterable; a single string is one text, not an iterable of characters."""
    if isinstance(texts, str):
        return [texts]
    require_many(name, texts)
    return texts


def require_many(name: str, values: Any) -> None:
    """Raise `TextError` for values that are not iterable, and for bytes."""
    try:
        if isinstance(values, bytes):
            raise TypeError
        iter(values)
    except TypeError:
        what = "a list or what can be read like one"
        raise TextError(f"{name} must be {what}, got {quoted(values)}") from None


def listed(name: str, values: Iterable[Item]) -> list[Item]:
    """Return all values as a list; raise `TextError` if they are not iterable."""
    require_many(name, values)
    return list(values)


def token_ids(what: str, tokens: Any) -> list[int]:
    """Return token ids as ints; raise `TextError` if they are not a sequence of whole numbers."""
    try:
        return [whole("a token id", token, most=MAX_ID) for token in tokens]
    except (TypeError, UnsupportedError):
        raise TextError(f"{what} must be a list of whole numbers, got {quoted(tokens)}") from None


def checked_features(reads: Features, source: object) -> NDArray[np.float32]:
    """Return features (size, frames) in fp32; raise `AudioError` for another shape or type, NaN or infinity."""
    array = np.asarray(source)
    shape = (reads.size, reads.frames)
    if array.shape != shape or array.dtype.kind != "f":
        raise AudioError(f"features must be floats of shape {shape}, got shape {array.shape} and type {array.dtype}")
    if not np.isfinite(array).all():
        raise AudioError("features contain NaN or infinity")
    found: NDArray[np.float32] = array.astype(np.float32, copy=False)
    return found


def paired(texts: Iterable[Text], others: Iterable[Item], what: str) -> Iterator[tuple[Text, Item]]:
    """Yield each text with its item of `others`; raise `TextError` if there are fewer or more of these."""
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
    """Raise `UnsupportedError` for a value that `unknown` does not support."""
    if not isinstance(unknown, str) or unknown not in get_args(Unknown):
        raise UnsupportedError(f"unknown must be one of {', '.join(get_args(Unknown))}, got {quoted(unknown)}")


def sizes(batch_size: int, batch_tokens: int | None = None) -> tuple[int, int | None]:
    """Return the sizes of a batch as ints; raise `UnsupportedError` if they are out of range."""
    return whole("batch_size", batch_size, 1, MOST), None if batch_tokens is None else whole(
        "batch_tokens", batch_tokens, 1
    )
