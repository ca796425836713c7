"""Batches of similar length out of an iterable of any length, and the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

READ_AHEAD = 64  # batches that are sorted together; bounds memory on endless input


def in_batches(
    items: Iterable[Item], work: Callable[[list[Item]], list[Result]], batch_size: int, length: Callable[[Item], int]
) -> Iterator[Result]:
    """Apply `work` to batches of items of similar length; the results come in the order of the items."""
    iterator = iter(items)
    while window := list(islice(iterator, READ_AHEAD * batch_size)):
        order = sorted(range(len(window)), key=lambda index: length(window[index]))
        results: dict[int, Result] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            results.update(zip(batch, work([window[index] for index in batch]), strict=True))
        yield from (results[index] for index in range(len(window)))
