"""Memory of the device that batches use one after the other, so that captured graphs over it can be replayed.

A tensor starts at the start of its slab, so equal shapes have equal addresses in all batches. Caches have two slabs:
graphs that select or grow rows read one and write the other.
Letters: B sources, K rows per source, R = B x K, S source length, M capacity.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txport.runtimes.ort.cuda.device import Binding, Block, Device, Tensor, aligned, bytes_of
from txport.targets.ports import Port

FIRST_CAPACITY = 32  # tokens per row; doubled when full
SHORTEST_SOURCE = 8  # tokens


class Bound(NamedTuple):
    """A graph bound to tensors of a workspace, and the number under which it can be captured."""

    binding: Binding
    graph: int


class Workspace:
    """The slabs for one batch at a time, and the graphs that are bound to them."""

    def __init__(self, device: Device, numbers: Iterable[int]) -> None:
        self.used: Any = None  # mark of its last work in the main queue, for writers in the other queue
        self._device = device
        self._numbers = iter(numbers)
        self._slabs: dict[str, Block] = {}
        self._bound: dict[tuple[object, ...], Bound] = {}

    def tensor(self, slab: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Return a tensor at the start of a slab. A slab that is too small is replaced, and its content is lost."""
        return Tensor(self._slab(slab, bytes_of(shape, dtype)), 0, shape, dtype)

    def tensors(self, slab: str, ports: Iterable[Port], lengths: dict[str, int]) -> list[Tensor]:
        """Return one tensor per port, one after the other in a slab."""
        shapes = [(port.shape(lengths), port.dtype) for port in ports]
        sizes = [aligned(bytes_of(*each)) for each in shapes]
        block = self._slab(slab, sum(sizes))
        starts = itertools.accumulate([0, *sizes])
        return [Tensor(block, start, *each) for start, each in zip(starts, shapes, strict=False)]

    def bound(self, key: tuple[object, ...], bind: Callable[[], Binding]) -> Bound:
        """Return the graph bound under a key, which must determine its tensors; call `bind` if there is none."""
        if key not in self._bound:
            self._bound[key] = Bound(bind(), next(self._numbers))
        return self._bound[key]

    @property
    def count(self) -> int:
        """The number of graphs bound to this workspace."""
        return len(self._bound)

    def _slab(self, name: str, size: int) -> Block:
        old = self._slabs.get(name)
        if old is not None and old.size >= size:
            return old
        if old is not None:
            self._device.synchronize()  # queued work may use it
            stale = [key for key, each in self._bound.items() if any(t.block is old for t in each.binding.tensors)]
            for key in stale:
                del self._bound[key]
            del self._slabs[name], old
        block = self._slabs[name] = self._device.allocate(size)
        return block


class Workspaces:
    """The unused workspaces; the one with the most bound graphs is used first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._numbers = itertools.count(1)
        self._free: deque[Workspace] = deque()

    def take(self) -> Workspace:
        """Return a workspace for a new batch."""
        while free := list(self._free):  # no lock: the garbage collector may call `give_back` at any point
            best = max(reversed(free), key=lambda each: each.count)
            with contextlib.suppress(ValueError):  # another thread has taken it
                self._free.remove(best)
                return best
        return Workspace(self._device, self._numbers)

    def give_back(self, workspace: Workspace) -> None:
        """Add an unused workspace; work still queued for it runs before the work of its next batch."""
        self._free.append(workspace)


def buckets(most: int, bucket: Callable[[int], int]) -> list[int]:
    """Return the buckets of all counts from 1 to `most`, the largest first."""
    return sorted({bucket(count) for count in range(1, most + 1)}, reverse=True)


def batch_bucket(count: int) -> int:
    """Round a number of sources up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    power = 1 << max(count - 1, 0).bit_length()
    return power // 4 * 3 if count <= power // 4 * 3 else power


def source_bucket(size: int, longest: int) -> int:
    """Round a source length up to 8 times a `batch_bucket`, but not beyond the model's longest source."""
    return max(size, min(SHORTEST_SOURCE * batch_bucket(-(-size // SHORTEST_SOURCE)), longest))


def capacity_bucket(size: int, longest: int) -> int:
    """Round a row length up to a power of 2 from 32 on, but not beyond the model's last position."""
    return max(size, min(max(FIRST_CAPACITY, 1 << max(size - 1, 0).bit_length()), longest))
