"""Memory of the device that batches use one after the other, so that graphs captured over it are replayed.

A tensor begins where its slab does, whatever its shape, so equal shapes have equal addresses again. Of caches there
are two slabs: what picks, moves or grows rows reads one and writes the other.
Letters: B sources, K rows of each, R = B x K, S source length, M capacity.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txport.bundles.ports import Port
from txport.runtimes.ort.cuda.device import Binding, Block, Device, Tensor, aligned, bytes_of

FIRST_CAPACITY = 32  # tokens of a row; it doubles
SHORTEST_SOURCE = 8  # tokens


class Bound(NamedTuple):
    """A graph over tensors of a workspace, and its number if it may be captured."""

    binding: Binding
    graph: int


class Workspace:
    """The slabs of one batch at a time, and the graphs that are bound to them."""

    def __init__(self, device: Device, numbers: Iterable[int]) -> None:
        self.used: Any = None  # marks the last work on it in the main queue, where others write to it
        self._device = device
        self._numbers = iter(numbers)
        self._slabs: dict[str, Block] = {}
        self._bound: dict[tuple[object, ...], Bound] = {}

    def tensor(self, slab: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        """At the beginning of a slab, whose content is lost if it is too small."""
        return Tensor(self._slab(slab, bytes_of(shape, dtype)), 0, shape, dtype)

    def tensors(self, slab: str, ports: Iterable[Port], lengths: dict[str, int]) -> list[Tensor]:
        """One for each port, in a slab, one behind the other."""
        shapes = [(port.shape(lengths), port.dtype) for port in ports]
        sizes = [aligned(bytes_of(*each)) for each in shapes]
        block = self._slab(slab, sum(sizes))
        starts = itertools.accumulate([0, *sizes])
        return [Tensor(block, start, *each) for start, each in zip(starts, shapes, strict=False)]

    def bound(self, key: tuple[object, ...], bind: Callable[[], Binding]) -> Bound:
        """What is bound by a key; its tensors follow from the key as long as their slabs stay."""
        if key not in self._bound:
            self._bound[key] = Bound(bind(), next(self._numbers))
        return self._bound[key]

    @property
    def count(self) -> int:
        """How many graphs are bound to it."""
        return len(self._bound)

    def _slab(self, name: str, size: int) -> Block:
        old = self._slabs.get(name)
        if old is not None and old.size >= size:
            return old
        if old is not None:
            self._device.synchronize()  # work on it may be queued
            stale = [key for key, each in self._bound.items() if any(t.block is old for t in each.binding.tensors)]
            for key in stale:
                del self._bound[key]
            del self._slabs[name], old
        block = self._slabs[name] = self._device.allocate(size)
        return block


class Workspaces:
    """Those that nobody works in; the one to which most graphs are bound goes first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._numbers = itertools.count(1)
        self._free: deque[Workspace] = deque()

    def take(self) -> Workspace:
        """One for a new batch."""
        while free := list(self._free):  # no lock: a collector may give back at any place of this
            best = max(reversed(free), key=lambda each: each.count)
            with contextlib.suppress(ValueError):  # another thread has taken it
                self._free.remove(best)
                return best
        return Workspace(self._device, self._numbers)

    def give_back(self, workspace: Workspace) -> None:
        """What is still queued for it happens before anything that its next batch does."""
        self._free.append(workspace)


def buckets(most: int, bucket: Callable[[int], int]) -> list[int]:
    """All that hold up to so many, the largest first."""
    return sorted({bucket(count) for count in range(1, most + 1)}, reverse=True)


def batch_bucket(count: int) -> int:
    """Room for so many sources: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    power = 1 << max(count - 1, 0).bit_length()
    return power // 4 * 3 if count <= power // 4 * 3 else power


def source_bucket(size: int, longest: int) -> int:
    """Room for a source of so many tokens: as `batch_bucket` in eights, but no more than a model can read."""
    return max(size, min(SHORTEST_SOURCE * batch_bucket(-(-size // SHORTEST_SOURCE)), longest))


def capacity_bucket(size: int, longest: int) -> int:
    """Room for so many tokens of a row, but no more than a model can write: tables of positions end there."""
    return max(size, min(max(FIRST_CAPACITY, 1 << max(size - 1, 0).bit_length()), longest))
