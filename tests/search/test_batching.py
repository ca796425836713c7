"""Batches: the caller sees one stream in order, the model sees items of similar length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txport.errors import TextError
from txport.search.batching import READ_AHEAD, at_once, in_batches

Item = tuple[int, int]  # its number and its length
LENGTHS = st.lists(st.integers(0, 9), max_size=400)


def items_of(lengths: list[int]) -> list[Item]:
    return list(enumerate(lengths))


@settings(deadline=None)
@given(lengths=LENGTHS, batch_size=st.integers(1, 5))
def test_results_come_in_the_order_of_the_items(lengths: list[int], batch_size: int) -> None:
    items = items_of(lengths)
    results = in_batches(
        items, at_once(lambda batch: [("did", item) for item in batch]), batch_size, length=lambda item: item[1]
    )
    assert list(results) == [("did", item) for item in items]


@settings(deadline=None)
@given(lengths=LENGTHS, batch_size=st.integers(1, 5))
def test_batches_are_full_and_sorted_by_length_within_a_window(lengths: list[int], batch_size: int) -> None:
    batches: list[list[Item]] = []

    def work(batch: list[Item]) -> list[Item]:
        batches.append(batch)
        return batch

    items = items_of(lengths)
    assert list(in_batches(items, at_once(work), batch_size, length=lambda item: item[1])) == items
    size = READ_AHEAD * batch_size
    expected = [
        list(batch)
        for window in chunks(items, size)
        for batch in chunks(sorted(window, key=lambda item: item[1]), batch_size)
    ]
    assert sorted(batches) == sorted(expected)


@settings(deadline=None)
@given(lengths=LENGTHS, batch_size=st.integers(1, 5), batch_tokens=st.integers(1, 20))
def test_batches_hold_so_many_tokens_and_no_fewer_than_fit(
    lengths: list[int], batch_size: int, batch_tokens: int
) -> None:
    batches: list[list[Item]] = []

    def work(batch: list[Item]) -> list[Item]:
        batches.append(batch)
        return batch

    items = items_of(lengths)[: READ_AHEAD * batch_size]
    assert list(in_batches(items, at_once(work), batch_size, lambda item: item[1], batch_tokens=batch_tokens)) == items
    batches.sort(key=lambda batch: (batch[0][1], batch[0][0]))
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        longest = max(length for _, length in batch)
        assert len(batch) == 1 or len(batch) <= batch_size
        assert len(batch) == 1 or len(batch) * longest <= batch_tokens
        if following:
            assert len(batch) == batch_size or (len(batch) + 1) * following[0][1] > batch_tokens


def chunks(items: list[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@settings(deadline=None)
@given(lengths=LENGTHS, batch_size=st.integers(1, 5))
def test_a_result_waits_for_no_batch_but_those_before_its_turn(lengths: list[int], batch_size: int) -> None:
    begun: list[Item] = []

    def work(batch: list[Item]) -> list[Item]:
        begun.append(batch[0])
        return batch

    items = items_of(lengths)[: READ_AHEAD * batch_size]
    for turn, _ in enumerate(in_batches(items, at_once(work), batch_size, length=lambda item: item[1]), 1):
        assert len(begun) <= turn


def test_a_batch_of_one_is_answered_before_another_is_read() -> None:
    lines = iter("ab")
    results = in_batches(lines, at_once(list), 1, length=len)
    assert next(results) == "a"
    assert list(lines) == ["b"]


def test_results_come_while_others_are_at_work() -> None:
    taken = Event()

    def work(batch: list[int]) -> list[int]:
        assert batch == [9] or taken.wait(60), "the first result came only with the last"
        return batch

    results = in_batches([9, 1], at_once(work), 1, length=lambda item: item, workers=2)
    assert next(results) == 9
    taken.set()
    assert list(results) == [1]


@settings(deadline=None)
@given(count=st.integers(0, 12), batch_size=st.integers(1, 5), workers=st.integers(1, 2))
def test_what_was_read_before_an_error_comes_before_it(count: int, batch_size: int, workers: int) -> None:
    def broken() -> Iterator[int]:
        yield from range(count)
        raise TextError("line 13: not UTF-8 text")

    results = in_batches(broken(), at_once(list), batch_size, length=lambda item: -item, workers=workers)
    assert list(itertools.islice(results, count)) == list(range(count))
    with pytest.raises(TextError, match="line 13"):
        next(results)


@pytest.mark.parametrize("batch_size", [2, 3, 32])
def test_an_endless_input_is_read_a_bounded_way_ahead(batch_size: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = in_batches(endless(), at_once(list), batch_size, length=lambda number: -number)
    assert taken == []
    window = READ_AHEAD * batch_size
    for expected in range(window):
        assert next(results) == expected
        assert len(taken) == window
    assert next(results) == window
    assert len(taken) == 2 * window


def test_no_items_are_no_work() -> None:
    def work(batch: list[int]) -> list[int]:
        raise AssertionError(batch)

    assert list(in_batches([], at_once(work), 4, length=lambda item: item)) == []


def test_work_that_loses_a_result_is_found_out() -> None:
    results = in_batches([1, 2, 3], at_once(lambda batch: batch[1:]), 3, length=lambda item: item)
    with pytest.raises(ValueError, match="shorter"):
        next(results)


@given(lengths=LENGTHS, batch_size=st.integers(2, 5), fails=st.sets(st.integers(0, 30)))
def test_the_next_batch_begins_before_one_ends(lengths: list[int], batch_size: int, fails: set[int]) -> None:
    """And one that can't begin yet begins in its own turn."""
    events: list[str] = []

    def begin(batch: list[Item]) -> Callable[[], list[Item]]:
        if events and (number := batch[0][0]) in fails:
            fails.remove(number)
            raise MemoryError
        events.append("begin")
        return lambda: (events.append("end"), batch)[1]

    items = items_of(lengths)[: READ_AHEAD * batch_size]

    is_smooth = not fails
    assert list(in_batches(items, begin, batch_size, lambda item: item[1])) == items
    count = -(-len(items) // batch_size)
    assert (events.count("begin"), events.count("end")) == (count, count)
    under_way = list(itertools.accumulate(1 if each == "begin" else -1 for each in events))
    assert max(under_way, default=0) <= 2
    if is_smooth and count > 1:
        assert events == ["begin", *["begin", "end"] * (count - 1), "end"]


def test_a_batch_whose_memory_the_next_one_took_runs_once_more_alone() -> None:
    held: list[int] = []

    def begin(batch: list[int]) -> Callable[[], list[int]]:
        held.append(batch[0])

        def end() -> list[int]:
            if len(held) > 1:
                held.clear()
                raise MemoryError
            held.clear()
            return batch

        return end

    how: dict[str, Any] = {"batch_size": 2, "length": lambda _: 2, "batch_tokens": 1}  # one item a batch, read ahead
    assert list(in_batches([1, 2, 3], begin, **how)) == [1, 2, 3]
    with pytest.raises(MemoryError):  # alone, it does not fit either
        list(in_batches([1, 2], lambda batch: partial(fail, MemoryError()), **how))


def fail(error: Exception) -> list[int]:
    raise error


def test_an_error_of_a_batch_that_began_early_comes_in_its_turn_and_is_not_tried_again() -> None:
    begun: list[int] = []

    def begin(batch: list[int]) -> Callable[[], list[int]]:
        begun.extend(batch)
        if batch == [2] and begun.count(2) == 1:
            raise TextError("2 is no good")
        return lambda: batch

    found = in_batches([1, 2, 3], begin, 2, lambda item: item, batch_tokens=1)
    assert next(found) == 1
    with pytest.raises(TextError, match="2 is no good"):
        next(found)
