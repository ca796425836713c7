"""`Device` on the CPU instead of a GPU: the same queues and captured graphs, with errors for incorrect use.

Queued work runs only when the host waits for it. A driver that reads too early, or that frees or overwrites memory in
use by queued work, therefore fails as on a GPU. Use that a GPU does not detect raises `AssertionError` here: memory
freed too early, a replay with other inputs, or memory that one queue writes and the other uses without waiting.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import le
from typing import Any, NamedTuple, cast

import numpy as np

from txport.errors import RunError
from txport.runtimes.base import running
from txport.runtimes.ort.cuda.device import (
    ALIGNMENT,
    CAPTURE_RUNS,
    EAGER,
    MAIN,
    QUEUES,
    Binding,
    Block,
    Tensor,
    Threads,
    adopted,
    stored,
    unstored,
)
from txport.system.arrays import Array

CPU = 1  # DLPack's device type
Clock = list[int]  # number of work items per queue
GARBAGE = 0xFF  # byte that fills new memory: NaN in any floating-point type


class HostBlock(Block):
    """Memory of the process."""

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + ALIGNMENT, GARBAGE, np.uint8)
        address = self._memory.ctypes.data
        super().__init__(address + -address % ALIGNMENT, size)
        self.written: Clock = [0 for _ in QUEUES]  # last work item of each queue that writes to it
        self.used: Clock = [0 for _ in QUEUES]  # last one that reads or writes it


class Fetch:
    """See `Fetched`."""

    def __init__(self, wait: Callable[[], None], found: list[Array]) -> None:
        self._wait = wait
        self._found = found

    def arrays(self) -> list[Array]:
        """See `Fetched.arrays`; raise `RunError` if earlier work failed."""
        self._wait()
        if not self._found:
            raise RunError("what was asked for was never computed, as a run before it failed; begin anew")
        return self._found


class Captured(NamedTuple):
    """A captured graph: the signature of its memory and values, and the binding that a replay uses."""

    signature: dict[str, tuple[Any, ...]]
    binding: Binding


class HostDevice:
    """See `Device`; a lock serialises the threads."""

    name = "cpu"

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._queued = self._done = 0
        self._counts: Clock = [0 for _ in QUEUES]
        self._behind: list[Clock] = [[0 for _ in QUEUES] for _ in QUEUES]  # per queue: work before its next item
        self._lock = threading.RLock()
        self._threads = Threads()
        self._here = threading.local()

    def allocate(self, size: int) -> Block:
        """See `Device.allocate`."""
        return HostBlock(size)

    def upload(self, array: Array, tensor: Tensor, queue: int = MAIN) -> None:
        """See `Device.upload`."""
        content = stored(array, tensor.dtype)
        assert content.shape == tensor.shape, f"an array of shape {content.shape} into {tensor.shape}"
        work = partial(_write, content.view(np.uint8) if content.size else content, _Place(tensor))
        self._add(work, queue, writes=[tensor])

    def clear(self, tensor: Tensor) -> None:
        """See `Device.clear`."""
        self._add(partial(_clear, _Place(tensor)), MAIN, writes=[tensor])

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `Device.copy`."""
        assert source.size == target.size, f"{source.size} bytes into {target.size}"
        self._add(partial(_copy, _Place(source), _Place(target)), MAIN, reads=[source], writes=[target])

    def mark(self, queue: int) -> Clock:
        """See `Device.mark`."""
        with self._lock:
            return [*self._behind[queue]]

    def wait_event(self, queue: int, mark: Clock) -> None:
        """See `Device.wait_event`."""
        with self._lock:
            self._behind[queue] = list(map(max, self._behind[queue], mark))

    def fetch(self, *tensors: Tensor) -> Fetch:
        """See `Device.fetch`."""
        with self._lock:
            self._add(partial(_read, [_Place(each) for each in tensors], found := list[Array]()), MAIN, reads=tensors)
            return Fetch(partial(self._wait, self._queued, self.mark(MAIN)), found)

    def run(self, binding: Binding, graph: int = EAGER) -> None:
        """See `Device.run`."""
        is_new = not self.is_captured(graph)
        self._threads.run(partial(self._run, binding, graph, is_new=is_new))
        self._threads.captured.add(graph)

    def _run(self, binding: Binding, graph: int, *, is_new: bool) -> None:
        if graph == EAGER:
            self._add_run(binding)
            return
        captured = self._captured.get(graph)
        now = _signature(binding)
        assert is_new == (captured is None), f"graph {graph} was captured on another thread"
        if captured is None:
            self._captured[graph] = Captured(now, binding)
            for _ in range(CAPTURE_RUNS):
                self._add_run(binding)
            return
        changed = [name for name in now if now[name] != captured.signature.get(name)]
        assert not changed, f"graph {graph} was captured over other memory, shapes or values of {', '.join(changed)}"
        self._add_run(captured.binding)

    def is_captured(self, graph: int) -> bool:
        """See `Device.is_captured`."""
        return graph in self._threads.captured

    def adopt(self, tensor: Any) -> Any:
        """See `Device.adopt`."""
        return adopted(tensor, CPU, "on the CPU")

    def synchronize(self) -> None:
        """See `Device.synchronize`."""
        self._wait(self._queued, self._counts)

    @property
    def _captured(self) -> dict[int, Captured]:
        """The graphs captured on this thread, which is how ONNX Runtime stores them."""
        if not hasattr(self._here, "captured"):
            self._here.captured = {}
        found: dict[int, Captured] = self._here.captured
        return found

    def _add(
        self,
        work: Callable[[], None],
        queue: int,
        *,
        reads: Iterable[Tensor] = (),
        writes: Iterable[Tensor] = (),
    ) -> None:
        with self._lock:
            self._require_order(queue, reads, writes)
            self._queue.append(work)
            self._queued += 1

    def _require_order(self, queue: int, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """Assert that the queue waits for conflicting work of the other queue on its memory; reads do not conflict."""
        self._counts[queue] += 1
        behind = self._behind[queue]
        count = self._counts[queue]
        behind[queue] = count
        for tensors, others in ((reads, "written"), (writes, "used")):
            for block in (cast(HostBlock, each.block) for each in tensors):
                before = getattr(block, others)
                assert all(map(le, before, behind)), f"queue {queue} does not wait for what another one does to memory"
                block.used[queue] = count
                if others == "used":
                    block.written[queue] = count

    def _add_run(self, binding: Binding) -> None:
        blocks = {id(each.block): weakref.ref(each.block) for each in binding.tensors}
        work = partial(_execute, binding.role, binding.session, binding.io, list(blocks.values()), binding.host)
        self._add(work, binding.queue, reads=binding.inputs.values(), writes=binding.outputs.values())

    def _wait(self, count: int, mark: Clock) -> None:
        """Run the first `count` items ever queued, as far as they have not run; if one fails, discard all others.

        Work queued from now on runs after the marked work, because the host has waited for that.
        """
        with self._lock:
            for queue in QUEUES:
                self.wait_event(queue, mark)
            while self._done < count:
                self._done += 1
                try:
                    self._queue.popleft()()
                except BaseException:
                    self._queue.clear()
                    self._done = self._queued
                    raise


class _Place:
    """A tensor with a weak reference to its memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._block = weakref.ref(tensor.block)
        self._tensor = tensor._replace(block=None)  # type: ignore[arg-type]

    def memory(self) -> tuple[Array, Tensor]:
        """Return the bytes of the tensor, and the tensor."""
        block = self._block()
        assert block is not None, "memory was freed before what was queued for it was done"
        tensor = self._tensor._replace(block=block)
        assert 0 <= tensor.offset <= tensor.offset + tensor.size <= block.size, "a tensor goes beyond its memory"
        content = np.ctypeslib.as_array((ctypes.c_uint8 * tensor.size).from_address(tensor.address))
        return content, tensor


def _signature(binding: Binding) -> dict[str, tuple[Any, ...]]:
    """Return all that a captured graph depends on, by side and port: an output may have an input's name."""
    inputs, outputs = (
        {f"{side} {name}": (each.address, each.shape, each.dtype) for name, each in tensors.items()}
        for side, tensors in (("input", binding.inputs), ("output", binding.outputs))
    )
    host = {f"input {name}": (array.ctypes.data, array.tobytes()) for name, array in binding.host.items()}
    return {**inputs, **outputs, **host}


def _execute(role: str, session: Any, io: Any, blocks: list[weakref.ref[Block]], host: object) -> None:
    """Run a graph. `host` only keeps the host inputs alive: a GPU would have read them when the run was queued."""
    assert all(block() is not None for block in blocks), f"memory of the {role} graph was freed before it ran"
    with running(role, "ONNX Runtime"):
        session.run_with_iobinding(io)


def _write(content: Array, place: _Place) -> None:
    place.memory()[0][:] = content.ravel()


def _copy(source: _Place, target: _Place) -> None:
    target.memory()[0][:] = source.memory()[0]


def _clear(place: _Place) -> None:
    place.memory()[0][:] = 0


def _read(places: list[_Place], found: list[Array]) -> None:
    found += [unstored(*place.memory()) for place in places]
