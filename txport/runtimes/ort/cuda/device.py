"""The protocol of devices for the driver of cuda bundles: memory, queued copies and runs, and synchronization.

There are two queues: one encodes sources, the other does everything else. Queued work may not have run before
`Fetched.arrays` or `synchronize` returns. Work in one queue runs in order. Work in different queues is ordered only by
`mark` and `wait_event`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from txport.errors import UnsupportedError, quoted
from txport.runtimes.ort.onnx_runtime import ort
from txport.system.arrays import Array, from_bf16, to_bf16
from txport.targets.ports import ENCODER

MAIN, ENCODE_QUEUE = 0, 1  # the queues; encoders run ahead, during steps of the previous batch
QUEUES = (MAIN, ENCODE_QUEUE)
EAGER = -1  # instead of a graph's number: run without capture
CAPTURE_RUNS = 3  # number of times that the first run of a captured graph executes its nodes
ALIGNMENT = 256  # bytes; preferred by kernels
# NumPy's name of a type -> ONNX's number, and bytes per element; NumPy has no bfloat16
ELEMENTS = {
    "float32": (1, 4),
    "uint8": (2, 1),
    "int32": (6, 4),
    "int64": (7, 8),
    "bool": (9, 1),
    "float16": (10, 2),
    "bfloat16": (16, 2),
}


class Block:
    """Memory of a device, valid while this object exists."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size


class Tensor(NamedTuple):
    """A tensor in a block; `offset` is in bytes, and `dtype` is a key of `ELEMENTS`."""

    block: Block
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self.block.address + self.offset

    @property
    def size(self) -> int:
        """The number of bytes."""
        return bytes_of(self.shape, self.dtype)


class Fetched(Protocol):
    """Queued copies to the host."""

    def arrays(self) -> list[Array]:
        """Wait for the copies and all work queued before them, and return them; half precision becomes float32."""
        ...


@dataclass(frozen=True, eq=False)
class Binding:
    """A graph bound to memory of a device; `host` are inputs that the graph reads on the host (`k`)."""

    role: str
    session: Any  # onnxruntime has no types
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    host: Mapping[str, Array]
    io: Any

    @property
    def queue(self) -> int:
        """The queue in which the graph runs."""
        return queue_of(self.role)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that the graph reads and writes on the device."""
        return [*self.inputs.values(), *self.outputs.values()]


class Device(Protocol):
    """The memory for the tensors of a cuda bundle, and the queues of work on them."""

    name: str  # ONNX Runtime's name of the device

    def allocate(self, size: int) -> Block:
        """Return `size` bytes with arbitrary content; raise `MemoryError` if there is no room."""
        ...

    def upload(self, array: Array, tensor: Tensor, queue: int = MAIN) -> None:
        """Queue a copy of the array's current content to the device, cast to the tensor's dtype."""
        ...

    def clear(self, tensor: Tensor) -> None:
        """Queue setting a tensor to zero."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy between two tensors of the same number of bytes on the device."""
        ...

    def mark(self, queue: int) -> Any:
        """Return a mark of all work that is in a queue now."""
        ...

    def wait_event(self, queue: int, mark: Any) -> None:
        """Let all work that is queued from now on run after the marked work."""
        ...

    def fetch(self, *tensors: Tensor) -> Fetched:
        """Queue copies of tensors to the host."""
        ...

    def run(self, binding: Binding, graph: int = EAGER) -> None:
        """Queue a run, in the queue of its role.

        The first run of a `graph` number captures it and executes it `CAPTURE_RUNS` times. Capture happens once for the
        thread that created the device, and once for all other threads. Later runs replay the graph with the memory,
        shapes and host values of its capture.
        """
        ...

    def is_captured(self, graph: int) -> bool:
        """Return whether this thread would replay the graph, because it is captured."""
        ...

    def adopt(self, tensor: Any) -> Any:
        """Return a DLPack tensor of any library as an OrtValue over the same memory.

        Our queue waits for the library's pending work. Raise `UnsupportedError` if the tensor is on another device.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        ...


def queue_of(role: str) -> int:
    """Return the queue in which the graph of a role runs: each session has one stream."""
    return ENCODE_QUEUE if role == ENCODER else MAIN


def adopted(tensor: Any, kind: int, where: str, **stream: int) -> Any:
    """See `Device.adopt`; `kind` is DLPack's number of the device type."""
    if not hasattr(tensor, "__dlpack__"):
        raise UnsupportedError(f"a tensor must have DLPack's methods, got {quoted(type(tensor).__name__)}")
    if (found := int(tensor.__dlpack_device__()[0])) != kind:
        raise UnsupportedError(f"a tensor must lie {where}, got one on DLPack's device {found}; move it there")
    return ort.OrtValue.from_dlpack(tensor.__dlpack__(**stream))


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(shape) * ELEMENTS[dtype][1]


def aligned(size: int) -> int:
    """Round a size in bytes up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def bind(
    device: Device,
    role: str,
    session: Any,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    host: Mapping[str, Array] | None = None,
) -> Binding:
    """Bind a graph's inputs and outputs to memory of the device, and its `host` inputs to host memory."""
    host = dict(host or {})
    io = session.io_binding()
    for name, each in inputs.items():
        io.bind_input(name, device.name, 0, ELEMENTS[each.dtype][0], each.shape, each.address)
    for name, array in host.items():
        io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, each in outputs.items():
        io.bind_output(name, device.name, 0, ELEMENTS[each.dtype][0], each.shape, each.address)
    return Binding(role, session, inputs, outputs, host, io)


def stored(array: Array, dtype: str) -> Array:
    """Return a copy of an array in a device's format; bfloat16 as uint16 bits, rounded to nearest even."""
    if dtype not in ELEMENTS:
        raise UnsupportedError(f"the cuda target has no tensors of type {dtype}; there are {', '.join(ELEMENTS)}")
    if dtype != "bfloat16":
        return np.array(array, dtype, order="C")
    return to_bf16(array)


def unstored(content: NDArray[np.uint8], tensor: Tensor) -> Array:
    """Bytes in a device's format -> a new array; half precision becomes float32."""
    if tensor.dtype == "bfloat16":
        return from_bf16(content.view(np.uint16)).reshape(tensor.shape)
    array = content.view(tensor.dtype).reshape(tensor.shape)
    return array.astype(np.float32) if tensor.dtype == "float16" else array.copy()


# ------------------------------------------------------------------------------------------------ threads

# ONNX Runtime stores captured graphs per thread, for the lifetime of the session. If each new thread ran graphs, it
# would capture all shapes again, and their memory would never be freed.


class Threads:
    """The thread that creates this object runs its own graphs; one worker thread runs those of all other threads."""

    def __init__(self) -> None:
        self._here = threading.local()  # not by thread id, because ids are reused
        self._lock = threading.Lock()
        self._here.is_first = True
        self._ours: ThreadPoolExecutor | None = None
        self._captured: tuple[set[int], set[int]] = set(), set()

    @property
    def captured(self) -> set[int]:
        """The graphs captured on the thread that runs this thread's graphs."""
        return self._captured[self._is_first]

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread for it, and wait until it is done, even if the wait is interrupted."""
        if self._is_first:
            work()
            return
        with self._lock:
            self._ours = self._ours or ThreadPoolExecutor(1, "txport-device")
        future = self._ours.submit(work)
        try:
            future.result()
        finally:
            wait((future,))

    @property
    def _is_first(self) -> bool:
        return getattr(self._here, "is_first", False)
