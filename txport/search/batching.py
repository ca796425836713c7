"""Group an iterable of any length into batches of similar length; return results in the original order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice
from typing import NoReturn, TypeVar

from txport.system.machine import is_out_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")

READ_AHEAD = 64  # batches that are sorted together; limits memory for endless input
TURNS = 8  # size of a worker's task in continuous batching, in batches
MOST = 1 << 16  # maximum number of items read ahead, and of items per batch


def at_once(work: Callable[[list[Item]], list[Result]]) -> Callable[[list[Item]], Callable[[], list[Result]]]:
    """Wrap work that is done in one call for `in_batches`."""
    return lambda batch: partial(work, batch)


def in_batches(
    items: Iterable[Item],
    begin: Callable[[list[Item]], Callable[[], list[Result]]],
    batch_size: int,
    length: Callable[[Item], int],
    workers: int = 1,
    batch_tokens: int | None = None,
    continuous: bool = False,
) -> Iterator[Result]:
    """Process batches of items of similar length; yield results in the order of the items, as soon as available.

    An error of `items` is raised after the results of all items before it.

    A batch has at most `batch_size` items (at most `MOST`), and at most `batch_tokens` tokens, padding included, unless
    it is one item. `workers` process batches in parallel. `begin` starts a batch and returns a function that finishes
    it; a single worker begins the next batch before it finishes one. With `continuous`, the work splits its items
    itself, and each worker gets a share of all items that were read.
    """
    iterator = iter(items)
    ahead = 1 if batch_size == workers == 1 else min(READ_AHEAD * batch_size, MOST)  # a batch of one is not sorted
    while True:
        window, problem = _read(iterator, ahead)
        lengths = [length(item) for item in window]
        order = sorted(range(len(window)), key=lengths.__getitem__)
        parts = [order[start::workers] for start in range(min(workers, len(order)))]
        if workers > 1:  # an interrupt or an error waits for the running tasks, so they must be short
            turns = TURNS * batch_size
            parts = [part[start : start + turns] for part in parts for start in range(0, len(part), turns)]
        batches = parts if continuous else list(_split(order, lengths, batch_size, batch_tokens))
        yield from _in_turn(_each(begin, window, batches, workers))
        if problem:
            raise problem
        if not window:
            return


def _read(iterator: Iterator[Item], count: int) -> tuple[list[Item], Exception | None]:
    """Read up to `count` items; return them with the error of the iterator, or None."""
    window: list[Item] = []
    try:
        for item in islice(iterator, count):
            window.append(item)  # noqa: PERF402 - items before an error are kept
    except Exception as error:
        return window, error
    return window, None


def _in_turn(done: Iterable[tuple[list[int], list[Result]]]) -> Iterator[Result]:
    """Yield the results of batches in the order of the items, each as soon as all before it are available."""
    waiting: dict[int, Result] = {}
    turn = 0
    for batch, results in done:
        waiting.update(zip(batch, results, strict=True))
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1


def _split(order: list[int], lengths: list[int], batch_size: int, batch_tokens: int | None) -> Iterator[list[int]]:
    """Split item indices, sorted by length, into batches."""
    batch: list[int] = []
    for index in order:
        is_too_long = batch_tokens is not None and (len(batch) + 1) * lengths[index] > batch_tokens
        if batch and (len(batch) == batch_size or is_too_long):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _one_by_one(
    begin: Callable[[list[Item]], Callable[[], list[Result]]], batches: list[list[Item]]
) -> Iterator[list[Result]]:
    """Yield the results of each batch; begin the next batch before one is finished, if memory allows both."""
    following: Callable[[], list[Result]] | None = None
    for at, batch in enumerate(batches):
        end = following or begin(batch)
        following = None
        if at + 1 < len(batches):
            following = _begun(begin, batches[at + 1])
        try:
            results = end()
        except Exception as error:
            if following is None or not is_out_of_memory(error):
                raise
        else:
            yield results
            continue
        following = None
        del end  # frees the memory of both
        yield begin(batch)()


def _begun(
    begin: Callable[[list[Item]], Callable[[], list[Result]]], batch: list[Item]
) -> Callable[[], list[Result]] | None:
    """Begin a batch; return a function that finishes it or raises its error, or None if memory is short."""
    try:
        return begin(batch)
    except Exception as error:
        return None if is_out_of_memory(error) else partial(_fail, error)


def _fail(error: Exception) -> NoReturn:
    raise error


def _each(
    begin: Callable[[list[Item]], Callable[[], list[Result]]],
    window: list[Item],
    batches: list[list[int]],
    workers: int,
) -> Iterator[tuple[list[int], list[Result]]]:
    """Yield each batch of indices with its results, in the order of completion.

    A single worker processes batches in the order of their first items. Several workers start with the longest items,
    so that all workers finish at about the same time.
    """
    picked = [(batch, [window[index] for index in batch]) for batch in batches]
    if workers == 1:
        picked.sort(key=lambda pair: min(pair[0]))
        results = _one_by_one(begin, [items for _, items in picked])
        yield from ((batch, found) for (batch, _), found in zip(picked, results, strict=True))
        return
    with ThreadPoolExecutor(workers) as executor:
        futures = {executor.submit(lambda each: begin(each)(), items): batch for batch, items in reversed(picked)}
        try:
            yield from ((futures[future], future.result()) for future in as_completed(futures))
        finally:
            executor.shutdown(cancel_futures=True)
