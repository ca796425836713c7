"""What the driver of cuda bundles asks of a device: memory, copies and runs that are queued in order, and to wait.

There are two queues: sources are encoded in one, all else happens in the other. Nothing that is queued has happened
before `Fetched.arrays` or `synchronize` returns. What is in one queue happens in its order; that of the other comes
before it only where a queue was told to `follow`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from txport.bundles.ports import ENCODER
from txport.errors import UnsupportedError, quoted
from txport.runtimes.ort.onnx_runtime import ort

Array = NDArray[Any]

MAIN, ENCODE_QUEUE = 0, 1  # the queues; encoders are ahead of the steps of the batch before
QUEUES = (MAIN, ENCODE_QUEUE)
EAGER = -1  # in place of a graph's number: run the nodes, and capture nothing
CAPTURE_RUNS = 3  # how often the first run of a captured graph executes its nodes
ALIGNMENT = 256  # bytes: where kernels like tensors to begin
# NumPy's name of a type -> ONNX's number, bytes of one element; NumPy itself has no bfloat16
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
    """Memory of a device, as long as this object lives."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size


class Tensor(NamedTuple):
    """A part of a block that holds numbers of one type, NumPy's name for it."""

    block: Block
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.block.address + self.offset

    @property
    def size(self) -> int:
        """Its bytes."""
        return bytes_of(self.shape, self.dtype)


class Fetched(Protocol):
    """Copies to the host that are under way."""

    def arrays(self) -> list[Array]:
        """Wait for them, and for all that was queued before. Half precision comes as float32."""
        ...


@dataclass(frozen=True, eq=False)
class Binding:
    """A graph over memory of a device; `host` are inputs that the graph reads on the host (`k`)."""

    role: str
    session: Any  # onnxruntime has no types
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    host: Mapping[str, Array]
    io: Any

    @property
    def queue(self) -> int:
        """The one in which it runs."""
        return queue_of(self.role)

    @property
    def tensors(self) -> list[Tensor]:
        """All that it reads and writes on the device."""
        return [*self.inputs.values(), *self.outputs.values()]


class Device(Protocol):
    """Where the tensors of a cuda bundle live, and the queues of all that is done to them."""

    name: str  # ONNX Runtime's

    def allocate(self, size: int) -> Block:
        """So many bytes, of any content; `MemoryError` where there is no room."""
        ...

    def upload(self, array: Array, tensor: Tensor, queue: int = MAIN) -> None:
        """Queue a copy to the device of what the array holds now, cast to the tensor's type."""
        ...

    def clear(self, tensor: Tensor) -> None:
        """Queue zeros."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy of as many bytes on the device."""
        ...

    def mark(self, queue: int) -> Any:
        """All that is in a queue by now."""
        ...

    def wait_event(self, queue: int, mark: Any) -> None:
        """What comes into a queue from now on happens behind all that is marked."""
        ...

    def fetch(self, *tensors: Tensor) -> Fetched:
        """Queue copies to the host."""
        ...

    def run(self, binding: Binding, graph: int = EAGER) -> None:
        """Queue a run, in the queue of its role.

        The first one of a `graph` captures it, and executes it `CAPTURE_RUNS` times: once for the thread that made the
        device, and once for all others. A captured graph runs over the memory, the shapes and the host's values that it
        was captured with.
        """
        ...

    def is_captured(self, graph: int) -> bool:
        """Whether a run of it would be a replay on this thread."""
        ...

    def adopt(self, tensor: Any) -> Any:
        """A tensor of any library, by DLPack, as one of ONNX Runtime in the same memory; its own queue goes first.

        `UnsupportedError` for one that lies elsewhere.
        """
        ...

    def synchronize(self) -> None:
        """Wait for all that was queued."""
        ...


def queue_of(role: str) -> int:
    """The queue in which the graph of a role runs: its session is made for one stream."""
    return ENCODE_QUEUE if role == ENCODER else MAIN


def adopted(tensor: Any, kind: int, where: str, **stream: int) -> Any:
    """See `Device.adopt`; `kind` is DLPack's number of a kind of device."""
    if not hasattr(tensor, "__dlpack__"):
        raise UnsupportedError(f"a tensor must have DLPack's methods, got {quoted(type(tensor).__name__)}")
    if (found := int(tensor.__dlpack_device__()[0])) != kind:
        raise UnsupportedError(f"a tensor must lie {where}, got one on DLPack's device {found}; move it there")
    return ort.OrtValue.from_dlpack(tensor.__dlpack__(**stream))


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Of a tensor."""
    return math.prod(shape) * ELEMENTS[dtype][1]


def aligned(size: int) -> int:
    """Bytes up to where the next tensor may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def bind(
    device: Device,
    role: str,
    session: Any,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    host: Mapping[str, Array] | None = None,
) -> Binding:
    """A graph's inputs and outputs over memory of the device."""
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
    """An array as a device holds it, in memory of its own; bfloat16 as the bits of its numbers, rounded to even."""
    if dtype not in ELEMENTS:
        raise UnsupportedError(f"the cuda target has no tensors of type {dtype}; there are {', '.join(ELEMENTS)}")
    if dtype != "bfloat16":
        return np.array(array, dtype, order="C")
    bits = np.array(array, np.float32, order="C").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def unstored(content: NDArray[np.uint8], tensor: Tensor) -> Array:
    """Bytes as a device held them -> a new array; half precision becomes float32."""
    if tensor.dtype == "bfloat16":
        return (content.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    array = content.view(tensor.dtype).reshape(tensor.shape)
    return array.astype(np.float32) if tensor.dtype == "float16" else array.copy()
