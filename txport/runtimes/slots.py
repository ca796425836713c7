"""Assign rows to slots. All sources have the same number of slots: the most rows that any source has had.

A source keeps its slots when its rows leave. Attention over it therefore has one shape, and the same rounding, whatever
else is in the batch. Letters: R rows, B sources, K slots per source; source s has slots s x K to s x K + K - 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from txport.runtimes.base import Ints


class Seating(NamedTuple):
    """The old sources that stay (B,), the slots per source, the new slot of each row (R,), and its old slot (R,)."""

    sources: Ints
    width: int
    slots: Ints
    old: Ints


def rows_of(sources: Ints, width: int) -> Ints:
    """Return the slots of all rows of the sources (N,): (N x K,)."""
    slots: Ints = (sources[:, None] * width + np.arange(width)).ravel()
    return slots


def seat(wanted: Ints, count: int, width: int) -> Seating:
    """The old slots that rows continue (R,), of `count` sources with `width` slots each -> the new slots."""
    theirs = wanted // width
    if np.array_equal(theirs, np.arange(count * width) // width):  # each source has as many rows as slots
        return Seating(np.arange(count), width, np.arange(count * width), wanted)
    sources, at = np.unique(theirs, return_inverse=True)
    wider = max(width, int(np.bincount(at, minlength=1).max()))
    return Seating(sources, wider, spread(at * wider + wanted % width, wider), wanted)


def spread(wanted: Ints, width: int) -> Ints:
    """The slots that rows continue (R,), possibly with repeats -> a separate slot for each row, within its source.

    If a source has as many rows as slots, its rows are in their order. Otherwise the first row that continues a slot
    keeps it, and the others get free slots. The slots of a source depend on its rows only.
    """
    sources = wanted // width
    is_full = np.bincount(sources, minlength=1)[sources] == width
    slots = np.where(is_full, sources * width + _turns(sources), wanted)
    stays = is_full.copy()
    stays[np.unique(slots, return_index=True)[1]] = True
    if stays.all():
        return slots
    places, at = np.unique(sources, return_inverse=True)
    taken = np.zeros((len(places), width), np.bool_)
    taken[at[stays], slots[stays] % width] = True
    vacant = np.argsort(taken, axis=1, kind="stable")  # the free slots first
    movers = np.flatnonzero(~stays)
    theirs = at[movers]
    slots[movers] = places[theirs] * width + vacant[theirs, _turns(theirs)]
    return slots


def _turns(sources: Ints) -> Ints:
    """The source of each row (R,) -> the index of each row among the rows of its source (R,): 0, 1, ..."""
    order = np.argsort(sources, kind="stable")
    turns: Ints = np.empty(len(sources), np.int64)
    turns[order] = np.arange(len(sources)) - np.searchsorted(sources[order], sources[order])
    return turns
