"""Batches of similar length out of an iterable of any length, and the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice
from typing import NoReturn, TypeVar

from txport.system.machine import is_out_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")

READ_AHEAD = 64  # batches that are sorted together; bounds memory on endless input
TURNS = 8  # continuous batches that a worker takes at a time
MOST = 1 << 16  # items that are read ahead, however large the batches; so none is larger


def at_once(work: Callable[[list[Item]], list[Result]]) -> Callable[[list[Item]], Callable[[], list[Result]]]:
    """Work that is done in one call, as `in_batches` takes it."""
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
    """Begin work on batches of items of similar length, and end it; results come in the order of the items.

    Each comes as soon as all before it are there; an error of `items` comes after the results of all that was read.

    A batch has at most `batch_size` items, which is at most `MOST`, and at most `batch_tokens` tokens, padding counted,
    unless it is one item. `workers` are at work at once. What `begin` gives ends the work on a batch; a single worker
    begins the next batch before it ends one. If it is `continuous`, the work itself takes so many at a time, and each
    worker gets its part of all that was read.
    """
    iterator = iter(items)
    ahead = 1 if batch_size == workers == 1 else min(READ_AHEAD * batch_size, MOST)  # one alone is not sorted
    while True:
        window, problem = _read(iterator, ahead)
        lengths = [length(item) for item in window]
        order = sorted(range(len(window)), key=lengths.__getitem__)
        parts = [order[start::workers] for start in range(min(workers, len(order)))]
        if workers > 1:  # an interrupt, or an error, waits for what the workers are at
            turns = TURNS * batch_size
            parts = [part[start : start + turns] for part in parts for start in range(0, len(part), turns)]
        batches = parts if continuous else list(_split(order, lengths, batch_size, batch_tokens))
        yield from _in_turn(_each(begin, window, batches, workers))
        if problem:
            raise problem
        if not window:
            return


def _read(iterator: Iterator[Item], count: int) -> tuple[list[Item], Exception | None]:
    """So many items, or fewer, and what went wrong with the one after them: these are good all the same."""
    window: list[Item] = []
    try:
        for item in islice(iterator, count):
            window.append(item)  # noqa: PERF402 - those before an error are kept
    except Exception as error:
        return window, error
    return window, None


def _in_turn(done: Iterable[tuple[list[int], list[Result]]]) -> Iterator[Result]:
    """The results of batches, as they come, in the order of the items: each as soon as all before it are there."""
    waiting: dict[int, Result] = {}
    turn = 0
    for batch, results in done:
        waiting.update(zip(batch, results, strict=True))
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1


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


def _one_by_one(
    begin: Callable[[list[Item]], Callable[[], list[Result]]], batches: list[list[Item]]
) -> Iterator[list[Result]]:
    """The results of each batch; before its work is ended, that on the next one begins, if there is memory for both."""
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
        del end  # so that the memory of both is given back
        yield begin(batch)()


def _begun(
    begin: Callable[[list[Item]], Callable[[], list[Result]]], batch: list[Item]
) -> Callable[[], list[Result]] | None:
    """What ends the work on a batch; None where it must wait for memory. Other errors come in the batch's own turn."""
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
    """What comes of each batch, as it comes.

    One worker begins with the batch whose item came first; of several, each takes the longest that is left, so that
    none is long at work when the others are done.
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
