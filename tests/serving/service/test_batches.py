"""What waits together is one batch; each request gets its own results, in order, or its own error."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.service.served import PATIENCE, wait_for
from txport.errors import EngineError, QueueFullError, TextError
from txport.serving.service.batches import Batches

ITEMS = st.lists(st.integers(-2, 9), max_size=7)


class Doubling:
    """Doubles whole numbers, and raises an error for negative ones; it waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.batches: list[Sequence[int]] = []

    def __call__(self, items: Sequence[int], **options: int) -> list[int]:
        assert self.opened.wait(PATIENCE)
        self.batches.append(items)
        if min(items) < 0:
            raise TextError(f"{min(items)} is negative")
        return [2 * item + options["add"] for item in items]


@given(requests=st.lists(st.tuples(ITEMS, st.integers(0, 1)), max_size=8), size=st.integers(1, 5))
def test_results_are_those_of_each_request_alone(requests: list[tuple[list[int], int]], size: int) -> None:
    work = Doubling()
    batches = Batches(size, 100)
    futures = [batches.submit(work, items, {"add": add}) for items, add in requests]
    work.opened.set()
    for (items, add), future in zip(requests, futures, strict=True):
        if min(items, default=0) < 0:
            with pytest.raises(TextError, match="is negative"):
                future.result(PATIENCE)
        else:
            assert future.result(PATIENCE) == [2 * item + add for item in items]
    batches.close()
    assert max(map(len, work.batches), default=0) <= size
    assert (batches.waiting, batches.running) == (0, 0)


def test_the_queue_has_a_bound_and_the_end_fails_what_waits() -> None:
    work = Doubling()
    batches = Batches(2, 4)
    first = batches.submit(work, [1, 2], {"add": 0})
    wait_for(lambda: batches.running == 2)
    second = batches.submit(work, [3, 4, 5], {"add": 0})
    with pytest.raises(QueueFullError, match="the queue is full, with 3 inputs"):
        batches.submit(work, [6, 7], {"add": 0})
    with pytest.raises(TextError, match="a request may have 4 inputs, this one has 5"):
        batches.submit(work, [1] * 5, {"add": 0})
    assert second.cancel()
    third = batches.submit(work, [8], {"add": 1})
    closing = threading.Thread(target=batches.close)
    closing.start()
    wait_for(lambda: batches._is_closed)
    work.opened.set()
    closing.join()
    assert first.result(PATIENCE) == [2, 4]
    with pytest.raises(CancelledError):
        second.result(PATIENCE)
    with pytest.raises(EngineError, match="was closed while the request waited"):
        third.result(PATIENCE)
    with pytest.raises(EngineError, match="this model is closed"):
        batches.submit(work, [1], {"add": 0})
    assert work.batches == [[1, 2]]
