"""The sessions of a cuda bundle's graphs, and separate runs of one graph, which proofs need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txport.errors import UnsupportedError
from txport.runtimes.base import GraphPorts
from txport.runtimes.ort.cuda.device import MAIN, Binding, Device, Tensor, bind, bytes_of, queue_of
from txport.runtimes.ort.placement import placement
from txport.runtimes.ort.sessions import Sessions
from txport.system.arrays import Array
from txport.targets.cuda import ON_HOST
from txport.targets.ports import Graph


class Graphs:
    """Sessions by role, the ports of their graphs, and the ports in their files, which may have another precision."""

    def __init__(self, described: Mapping[str, Graph], sessions: Sessions, ports: Callable[[str], GraphPorts]) -> None:
        self.described = described
        self.sessions = sessions
        self.ports = ports

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return placement(self.sessions)

    def run_on_device(self, role: str, given: Mapping[str, Any], device: Device) -> dict[str, Any]:
        """DLPack tensors of any library on the device, by port -> OrtValues by port, which support DLPack.

        Raise `UnsupportedError` for tensors on another device or of another dtype.
        """
        graph = self.described[role]
        io = self.sessions[role].io_binding()
        values = {port.name: device.adopt(given[port.name]) for port in graph.inputs}
        for port in graph.inputs:
            kind = values[port.name].data_type()
            if kind != f"tensor({port.dtype})":
                raise UnsupportedError(f"{port.name} must be of type {port.dtype}, got {kind[7:-1]}; cast it")
            io.bind_ortvalue_input(port.name, values[port.name])
        for port in graph.outputs:
            io.bind_output(port.name, device.name)
        device.run(Binding(role, self.sessions[role], {}, {}, {}, io))
        device.synchronize()
        return {port.name: value for port, value in zip(graph.outputs, io.get_outputs(), strict=True)}

    def run(self, role: str, inputs: Mapping[str, Array], device: Device) -> dict[str, Array]:
        """All inputs of a graph by port -> all of its outputs; half precision is float32 in arrays."""
        graph = self.described[role]
        host = {name: inputs[name] for name in ON_HOST if name in inputs}
        lengths = graph.lengths({name: array.shape for name, array in inputs.items()})
        lengths.update({name: int(array[0]) for name, array in host.items()})
        given = {port.name: _new(device, inputs[port.name].shape, port.dtype) for port in graph.inputs}
        for name, tensor in given.items():
            device.upload(inputs[name], tensor, queue_of(role))
        made = {port.name: _new(device, port.shape(lengths), port.dtype) for port in graph.outputs}
        read = {name: tensor for name, tensor in given.items() if name not in host}
        binding = bind(device, role, self.sessions[role], read, made, host)
        device.run(binding)
        device.wait_event(MAIN, device.mark(binding.queue))
        return dict(zip(made, device.fetch(*made.values()).arrays(), strict=True))


def _new(device: Device, shape: tuple[int, ...], dtype: str) -> Tensor:
    return Tensor(device.allocate(bytes_of(shape, dtype)), 0, shape, dtype)
