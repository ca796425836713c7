"""The shapes of all steps of batches of given sizes, for capture before the first batch.

Letters: B sources, K rows per source, S source length, M capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from txport.errors import UnsupportedError
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.base import Sizes
from txport.runtimes.ort.cuda.workspace import batch_bucket, buckets, capacity_bucket, source_bucket

MOST_CAPTURES = 4096  # in a warm-up: each runs a step three times, and its graph remains on the device


class Shape(NamedTuple):
    """The attributes of these names of a `CudaState`."""

    batch: int
    width: int
    capacity: int
    places: int
    rows_side: int
    source_side: int


def shapes(facts: Facts, sizes: Sizes) -> Iterator[Shape]:
    """Yield all shapes of batches of these sizes, the largest first, so that no slab is replaced by a larger one.

    Rows change their slab when they move to a smaller batch, a larger capacity or another beam. Sources change it when
    they move to a smaller batch or to a larger source length.
    """
    batches = buckets(sizes.sources, batch_bucket)
    capacities = _capacities(facts, sizes.length)
    places = _places(facts, sizes.source_lengths)
    has_source = facts.is_encoder_decoder
    has_smaller = len(batches) > 1
    has_moves = has_smaller or sizes.rows > 1 or len(capacities) > 1
    sides = (0, 1) if has_moves else (0,), (0, 1) if has_source and (has_smaller or len(places) > 1) else (0,)
    for batch, capacity, length in product(batches, capacities, places):
        yield from (Shape(batch, sizes.rows, capacity, length, *both) for both in product(*sides))


def require_few(sizes: Sizes, captures: int) -> None:
    """Raise `UnsupportedError` if these sizes need too many captures, in time and memory."""
    if captures > MOST_CAPTURES:
        what = f"batches of up to {sizes.sources} sources, {sizes.rows} rows of each and {sizes.length} tokens a row"
        fix = "lower batch_size, source_tokens or max_new_tokens, or leave out no_repeat_ngram_size"
        raise UnsupportedError(f"{what} have {captures} kinds of steps, more than {MOST_CAPTURES} to capture; {fix}")


def _capacities(facts: Facts, length: int) -> list[int]:
    """Return the capacities of rows of up to `length` tokens, the largest first."""
    longest = facts.writes.longest
    return buckets(min(length, longest), lambda size: capacity_bucket(size, longest))


def _places(facts: Facts, lengths: Sequence[int]) -> list[int]:
    """Return the padded lengths of sources, the largest first; [0] for a causal model."""
    if not facts.is_encoder_decoder:
        return [0]
    if isinstance(facts.reads, Features):
        return [facts.reads.longest]
    longest = facts.reads.longest
    return sorted({source_bucket(size, longest) for size in lengths}, reverse=True)
