"""Buffers are as large as they must be, are used again, and are refused where no machine has room."""

from __future__ import annotations

import numpy as np
import pytest

from txport.system.arrays import Hold, Pool


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31, 4), (1 << 32, 1 << 32), (1 << 21, 1 << 21, 1 << 21)])
def test_a_shape_beyond_all_memory_is_refused_rather_than_counted_modulo_2_to_the_64(shape: tuple[int, ...]) -> None:
    with pytest.raises(MemoryError, match=r"an array of the shape \(.*\) needs \d+ bytes"):
        Pool().zeros(Hold(), shape)


def test_a_buffer_comes_back_when_its_owner_is_gone() -> None:
    pool = Pool()
    hold = Hold()
    first = pool.empty(hold, (2, 3, 0, 5)), pool.empty(hold, (100, 70))
    assert [each.shape for each in first] == [(2, 3, 0, 5), (100, 70)]
    place = first[1].ctypes.data
    del hold
    again = pool.empty(Hold(), (90, 70))
    assert again.ctypes.data == place
    assert again.dtype == np.float32


def test_nan_of_one_request_is_not_in_the_memory_of_the_next() -> None:
    pool = Pool()
    hold = Hold()
    first = pool.zeros(hold, (4, 1024))
    first[:] = np.nan
    address = first.ctypes.data
    del first, hold
    hold = Hold()
    again = pool.zeros(hold, (4, 1024))
    assert again.ctypes.data == address, "the same memory"
    assert not again.any()


def test_memory_that_is_held_is_given_to_nobody_else() -> None:
    pool = Pool()
    one = Hold()
    two = Hold()
    arrays = [pool.empty(one, (3, 5)), pool.zeros(two, (3, 5))]
    assert not np.shares_memory(*arrays)
    assert arrays[0].shape == arrays[1].shape == (3, 5)
