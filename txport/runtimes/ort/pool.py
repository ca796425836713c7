"""Memory buffers that are reused."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1 << 12  # bytes of a pooled buffer
LARGEST = 1 << 44


class Pool:
    """Buffers that return to the pool when their owners are collected, so that new requests need no new memory."""

    def __init__(self) -> None:
        # No lock: the garbage collector may return a buffer during `_take`, and each operation is atomic.
        self._free: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def zeros(self, owner: object, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """Return an array of zeros, valid while `owner` exists. Old content may have NaN, and NaN times zero is NaN."""
        return self._take(owner, shape, dtype, clear=True)

    def empty(self, owner: object, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """Return an array with arbitrary content, valid while `owner` exists."""
        return self._take(owner, shape, dtype, clear=False)

    def _take(self, owner: object, shape: tuple[int, ...], dtype: Any, *, clear: bool) -> NDArray[Any]:
        """Return an array from the pool; raise `MemoryError` for more than `LARGEST` bytes."""
        count = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        if count > LARGEST:
            raise MemoryError(f"an array of the shape {shape} needs {count} bytes")
        size = max(SMALLEST, 1 << (count - 1).bit_length()) if count else SMALLEST
        try:
            buffer = self._free[size].pop()
            if clear:
                buffer[:count] = 0
        except IndexError:
            buffer = np.zeros(size, np.uint8)
        weakref.finalize(owner, self._give_back, buffer).atexit = False
        array: NDArray[Any] = buffer[:count].view(dtype).reshape(shape)
        return array

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        self._free[buffer.size].append(buffer)


class Hold:
    """Owner of buffers: they return to the pool when it is collected."""
