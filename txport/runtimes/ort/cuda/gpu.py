"""`Device` on a CUDA GPU: memory, pinned copies and two streams by the CUDA runtime, graphs by ONNX Runtime."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from txport.errors import RunError, UnavailableError
from txport.runtimes.base import running
from txport.runtimes.ort.cuda.device import (
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
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.options import CUDA
from txport.runtimes.ort.onnx_runtime import ort
from txport.system.arrays import Array

NON_BLOCKING, NO_TIMING = 1, 2  # CUDA's flags for streams and events
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # CUDA's directions of copies
GPU = 2  # DLPack's device type
OUT_OF_MEMORY = 2  # CUDA's error code
MAJORS = (13, 12)  # major versions of the CUDA runtime that ONNX Runtime is built with
EXPLAIN = partial(explain, provider=CUDA)
STAGING = 1 << 20  # bytes of pinned memory for uploads of small arrays
# Serialises all CUDA calls of this process: a graph can't be captured while other threads allocate or synchronize.
LOCK = threading.RLock()
UNUSED = deque[int]()  # addresses of blocks after their last use


class Cudart:
    """The functions of the CUDA runtime. Each raises `MemoryError` or `RunError` if it returns an error code."""

    def __init__(self) -> None:
        ort.preload_dlls()
        names = [f"cudart64_{major}.dll" if sys.platform == "win32" else f"libcudart.so.{major}" for major in MAJORS]
        self._library = _first(names)

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def checked(*arguments: Any) -> None:
            if code := function(*arguments):
                self._raise(name, code)

        setattr(self, name, checked)
        return checked

    def _raise(self, name: str, code: int) -> None:
        say = self._library.cudaGetErrorString
        say.restype = ctypes.c_char_p
        message = f"CUDA failure {code} in {name}: {(say(code) or b'unknown').decode()}"
        raise MemoryError(message) if code == OUT_OF_MEMORY else RunError(f"{message}; `txport doctor` says more")


def _first(names: list[str]) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnavailableError(f"CUDA's runtime library is missing ({names[0]}); `txport doctor` says what to install")


class CudaBlock(Block):
    """Memory of the GPU; after its last use, it is freed at the next allocation, because no capture runs then.

    A later model frees what a closed one has left.
    """

    def __init__(self, address: int, size: int) -> None:
        super().__init__(address, size)
        self._unused = UNUSED  # a module's names may be gone when a process ends

    def __del__(self) -> None:
        self._unused.append(self.address)


class Pinned:
    """Pinned host memory, which the GPU can copy from and to asynchronously."""

    def __init__(self, cudart: Cudart, size: int) -> None:
        self.size = size
        place = ctypes.c_void_p()
        cudart.cudaHostAlloc(ctypes.byref(place), ctypes.c_size_t(size), 0)
        self.address = int(place.value or 0)
        self.content = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))


class Fetch:
    """See `Fetched`."""

    def __init__(self, device: CudaDevice, tensors: tuple[Tensor, ...], pinned: list[Pinned], event: Any) -> None:
        self._device = device
        self._tensors = tensors
        self._pinned = pinned
        self._event = event

    def arrays(self) -> list[Array]:
        """See `Fetched.arrays`."""
        self._device.wait(self._event)
        pairs = zip(self._pinned, self._tensors, strict=True)
        return [unstored(pinned.content[: tensor.size], tensor) for pinned, tensor in pairs]

    def __del__(self) -> None:
        self._device.take_back(self._pinned, self._event)


class Mark:
    """See `Device.mark`: a CUDA event, which may be reused after a queue was told to wait for it."""

    def __init__(self, device: CudaDevice, event: Any) -> None:
        self.event = event
        self._device = device

    def __del__(self) -> None:
        self._device.take_back([], self.event)


class CudaDevice:
    """See `Device`. Each queue is a CUDA stream; if `stream`, an address, is given, both queues are that stream."""

    name = "cuda"

    def __init__(self, stream: int | None = None) -> None:
        self._cudart = Cudart()
        self._pinned: defaultdict[int, deque[Pinned]] = defaultdict(deque)
        self._events: deque[Any] = deque()
        self._threads = Threads()
        self._options = dict[int, Any]()
        with LOCK:
            self.streams = [self._new_stream() if stream is None else stream for _ in QUEUES]
            self._staging = Pinned(self._cudart, STAGING)
            self._staged = 0

    def _new_stream(self) -> int:
        place = ctypes.c_void_p()
        self._cudart.cudaStreamCreateWithFlags(ctypes.byref(place), NON_BLOCKING)
        return int(place.value or 0)

    def allocate(self, size: int) -> Block:
        """See `Device.allocate`."""
        place = ctypes.c_void_p()
        with LOCK:
            while UNUSED:  # cudaFree waits for the device
                self._cudart.cudaFree(ctypes.c_void_p(UNUSED.popleft()))
            self._cudart.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(max(size, 1)))
        return CudaBlock(int(place.value or 0), size)

    def upload(self, array: Array, tensor: Tensor, queue: int = MAIN) -> None:
        """See `Device.upload`; small arrays are copied through our pinned memory, large ones are staged by CUDA."""
        content = np.ascontiguousarray(stored(array, tensor.dtype))
        assert content.shape == tensor.shape, f"an array of shape {content.shape} into {tensor.shape}"
        with LOCK:
            source = content.ctypes.data
            if 0 < content.nbytes <= STAGING // 4:
                source = self._stage(content)
            self._copy(tensor.address, source, content.nbytes, TO_DEVICE, queue)

    def _stage(self, content: Array) -> int:
        """Copy an array to pinned memory, after the previous one, and return its address.

        When the memory is full, wait for all copies from it, then start again.
        """
        size = -(-content.nbytes // 64) * 64
        if self._staged + size > STAGING:
            self.synchronize()
            self._staged = 0
        start = self._staged
        self._staging.content[start : start + content.nbytes] = content.view(np.uint8).ravel()
        self._staged += size
        return self._staging.address + start

    def clear(self, tensor: Tensor) -> None:
        """See `Device.clear`."""
        with LOCK:
            place = ctypes.c_void_p(tensor.address)
            size = ctypes.c_size_t(tensor.size)
            self._cudart.cudaMemsetAsync(place, 0, size, self._stream(MAIN))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `Device.copy`."""
        with LOCK:
            self._copy(target.address, source.address, source.size, ON_DEVICE, MAIN)

    def mark(self, queue: int) -> Mark:
        """See `Device.mark`."""
        with LOCK:
            return Mark(self, self._record(queue))

    def wait_event(self, queue: int, mark: Mark) -> None:
        """See `Device.wait_event`."""
        with LOCK:
            self._cudart.cudaStreamWaitEvent(self._stream(queue), mark.event, 0)

    def fetch(self, *tensors: Tensor) -> Fetch:
        """See `Device.fetch`."""
        with LOCK:
            pinned = [self._take(each.size) for each in tensors]
            for memory, each in zip(pinned, tensors, strict=True):
                self._copy(memory.address, each.address, each.size, TO_HOST, MAIN)
            return Fetch(self, tensors, pinned, self._record(MAIN))

    def run(self, binding: Binding, graph: int = EAGER) -> None:
        """See `Device.run`."""
        with LOCK, running(binding.role, "ONNX Runtime", EXPLAIN):
            if graph not in self._options:
                self._options[graph] = _options(graph)
            self._threads.run(partial(binding.session.run_with_iobinding, binding.io, self._options[graph]))
            self._threads.captured.add(graph)

    def is_captured(self, graph: int) -> bool:
        """See `Device.is_captured`."""
        return graph in self._threads.captured

    def adopt(self, tensor: Any) -> Any:
        """See `Device.adopt`; the tensor's library makes our stream wait for its stream."""
        return adopted(tensor, GPU, "on the GPU", stream=self.streams[MAIN])

    def synchronize(self) -> None:
        """See `Device.synchronize`."""
        with LOCK:
            for queue in QUEUES:
                self._cudart.cudaStreamSynchronize(self._stream(queue))

    def wait(self, event: Any) -> None:
        """Wait until the work queued before an event is done."""
        with LOCK:
            self._cudart.cudaEventSynchronize(event)

    def take_back(self, pinned: list[Pinned], event: Any) -> None:
        """Take back unused pinned memory and an event; later copies to this memory run after earlier ones."""
        for each in pinned:
            self._pinned[each.size].append(each)
        self._events.append(event)

    def _take(self, size: int) -> Pinned:
        rounded = 1 << max(12, (size - 1).bit_length())
        free = self._pinned[rounded]
        return free.popleft() if free else Pinned(self._cudart, rounded)

    def _stream(self, queue: int) -> Any:
        return ctypes.c_void_p(self.streams[queue])

    def _record(self, queue: int) -> Any:
        """Record an event after all work in a queue, and return it."""
        event = self._events.popleft() if self._events else self._new_event()
        self._cudart.cudaEventRecord(event, self._stream(queue))
        return event

    def _new_event(self) -> Any:
        event = ctypes.c_void_p()
        self._cudart.cudaEventCreateWithFlags(ctypes.byref(event), NO_TIMING)
        return event

    def _copy(self, target: int, source: int, size: int, direction: int, queue: int) -> None:
        if size:
            places = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size)
            self._cudart.cudaMemcpyAsync(*places, direction, self._stream(queue))


def _options(graph: int) -> Any:
    """Return the options of an asynchronous run, which is captured or replayed unless `graph` is `EAGER`."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
