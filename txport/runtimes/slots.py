"""Where the rows of a source lie: in slots, of which every source has as many as any ever had rows at once.

A source keeps its slots when rows of it leave, so that attention over it has one shape, and rounds alike, whatever else
is in the batch. Letters: R rows, B sources, K slots of each; those of source s are s x K to s x K + K - 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from txport.runtimes.base import Ints


class Seating(NamedTuple):
    """Which old sources stay (B,), how many slots each has, the slot of each row (R,), and its old one (R,)."""

    sources: Ints
    width: int
    slots: Ints
    old: Ints


def seat(wanted: Ints, count: int, width: int) -> Seating:
    """The old slots that rows go on from (R,), of `count` sources with `width` slots each -> where they are to lie."""
    theirs = wanted // width
    if np.array_equal(theirs, np.arange(count * width) // width):  # as many of each as there are slots
        return Seating(np.arange(count), width, np.arange(count * width), wanted)
    sources, at = np.unique(theirs, return_inverse=True)
    wider = max(width, int(np.bincount(at, minlength=1).max()))
    return Seating(sources, wider, spread(at * wider + wanted % width, wider), wanted)


def spread(wanted: Ints, width: int) -> Ints:
    """Slots that rows go on from (R,), some more than once -> where each goes on, by what its own source's rows want.

    Where a source has as many rows as slots, they lie in their order. Else one of equals stays, and others go beside.
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
    vacant = np.argsort(taken, axis=1, kind="stable")  # the free ones first
    movers = np.flatnonzero(~stays)
    theirs = at[movers]
    slots[movers] = places[theirs] * width + vacant[theirs, _turns(theirs)]
    return slots


def _turns(sources: Ints) -> Ints:
    """The source of each row -> which of its source's rows it is: 0, 1, ..."""
    order = np.argsort(sources, kind="stable")
    turns: Ints = np.empty(len(sources), np.int64)
    turns[order] = np.arange(len(sources)) - np.searchsorted(sources[order], sources[order])
    return turns
