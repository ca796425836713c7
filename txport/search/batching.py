"""Batches of similar length out of an iterable of any length, and the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

READ_AHEAD = 64  # batches that are sorted together; bounds memory on endless input


def in_batches(
    items: Iterable[Item],
    work: Callable[[list[Item]], list[Result]],
    batch_size: int,
    length: Callable[[Item], int],
    workers: int = 1,
    batch_tokens: int | None = None,
    continuous: bool = False,
) -> Iterator[Result]:
    """Apply `work` to batches of items of similar length, `workers` at once; results come in the order of the items.

    A batch has at most `batch_size` items, and at most `batch_tokens` tokens, padding counted, unless it is one item.
    If it is `continuous`, `work` itself takes so many at a time, and each worker gets its share of all that was read.
    """
    iterator = iter(items)
    while window := list(islice(iterator, READ_AHEAD * batch_size)):
        lengths = [length(item) for item in window]
        order = sorted(range(len(window)), key=lengths.__getitem__)
        shares = [order[start::workers] for start in range(min(workers, len(order)))]
        batches = shares if continuous else list(_split(order, lengths, batch_size, batch_tokens))
        results: dict[int, Result] = {}
        for batch, done in zip(batches, _each(work, window, batches, workers), strict=True):
            results.update(zip(batch, done, strict=True))
        yield from (results[index] for index in range(len(window)))


def _split(order: list[int], lengths: list[int], batch_size: int, batch_tokens: int | None) -> Iterator[list[int]]:
    """Items in rising order of length -> batches."""
    batch: list[int] = []
    for index in order:
        is_too_long = batch_tokens is not None and (len(batch) + 1) * lengths[index] > batch_tokens
        if batch and (len(batch) == batch_size or is_too_long):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _each(
    work: Callable[[list[Item]], list[Result]], window: list[Item], batches: list[list[int]], workers: int
) -> Iterator[list[Result]]:
    """What comes of each batch; the longest, which come last, start first where several work at once."""
    picked = [[window[index] for index in batch] for batch in batches]
    if workers == 1:
        yield from map(work, picked)
        return
    with ThreadPoolExecutor(workers) as executor:
        futures = [executor.submit(work, batch) for batch in reversed(picked)]
        try:
            yield from (future.result() for future in reversed(futures))
        finally:
            executor.shutdown(cancel_futures=True)
