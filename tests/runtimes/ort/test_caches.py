"""Rows of caches are copied without another copy of them all."""

from __future__ import annotations

import tracemalloc

import numpy as np

from txport.runtimes.ort.caches import put_rows


def test_rows_are_copied_a_tensor_at_a_time() -> None:
    old = np.random.default_rng(0).normal(size=(24, 6, 2, 64, 16)).astype(np.float32)
    new = np.zeros((24, 8, 2, 128, 16), np.float32)
    places, chosen = np.array([7, 0, 3]), np.array([5, 1, 1])
    tracemalloc.start()
    put_rows(new, places, old, chosen, 50)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = np.zeros_like(new)
    expected[:, places, :, :50] = old[:, chosen, :, :50]
    np.testing.assert_array_equal(new, expected)
    assert peak < old.nbytes / 10
