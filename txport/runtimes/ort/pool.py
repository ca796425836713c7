"""Memory that is used again."""

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
    """Buffers that come back when nobody holds them, so that a new request touches no new memory."""

    def __init__(self) -> None:
        # No lock: a collector that runs inside `take` may give back, and each operation is atomic by itself.
        self._free: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def zeros(self, owner: object, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """An array of zeros until `owner` is gone; the one before may have left NaN, which is NaN times zero too."""
        return self._take(owner, shape, dtype, clear=True)

    def empty(self, owner: object, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """An array of any content until `owner` is gone."""
        return self._take(owner, shape, dtype, clear=False)

    def _take(self, owner: object, shape: tuple[int, ...], dtype: Any, *, clear: bool) -> NDArray[Any]:
        """Raises `MemoryError` for one that no machine has room for."""
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
    """What a buffer's life hangs on."""
