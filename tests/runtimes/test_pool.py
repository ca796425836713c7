"""Memory that is used again holds nothing that spoils a request."""

from __future__ import annotations

import numpy as np

from txport.runtimes.pool import Hold, Pool


def test_nan_of_one_request_is_not_in_the_memory_of_the_next() -> None:
    pool, hold = Pool(), Hold()
    first = pool.zeros(hold, (4, 1024))
    first[:] = np.nan
    address = first.ctypes.data
    del first, hold
    hold = Hold()
    again = pool.zeros(hold, (4, 1024))
    assert again.ctypes.data == address, "the same memory"
    assert not again.any()


def test_memory_that_is_held_is_given_to_nobody_else() -> None:
    pool, one, two = Pool(), Hold(), Hold()
    arrays = [pool.empty(one, (3, 5)), pool.zeros(two, (3, 5))]
    assert not np.shares_memory(*arrays)
    assert arrays[0].shape == arrays[1].shape == (3, 5)
