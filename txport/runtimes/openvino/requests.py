"""Compiled graphs, their inference requests, and the arrays that these read and write."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.rewrite import Model
from txport.system.arrays import Array, from_bf16, to_bf16

UNCOUNTED = ("Input", "Output", "Const")  # types of nodes that compute nothing


class Held:
    """An array, and an OpenVINO tensor over the same memory; an array of uint16 has the bits of bf16."""

    def __init__(self, stored: Array) -> None:
        self._stored = stored
        self.shape = stored.shape
        self._is_half = stored.dtype == np.uint16
        if self._is_half:
            self.tensor = openvino.Tensor(stored, list(self.shape), openvino.Type.bf16)
        else:
            self.tensor = openvino.Tensor(stored, shared_memory=True)

    @property
    def array(self) -> Array:
        """The numbers; those of bf16 in fp32."""
        return from_bf16(self._stored) if self._is_half else self._stored

    def take(self, rows: Array) -> Held:
        """Return some rows, copied."""
        return Held(self._stored[rows])

    def half(self) -> Held:
        """Return the numbers in bf16."""
        return self if self._is_half else Held(to_bf16(self._stored))


class Tensor(Protocol):
    """What a run reads: an array, or a cache."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims."""
        ...

    @property
    def array(self) -> Array:
        """Its numbers."""
        ...

    @property
    def tensor(self) -> object:
        """Its numbers, as a tensor of OpenVINO."""
        ...


class Request:
    """An inference request, one run at a time. Inputs that are already bound are not bound again."""

    def __init__(self, model: Model, inputs: Sequence[str], outputs: Mapping[str, int]) -> None:
        self._request = model.create_infer_request()
        self._inputs = inputs
        self._outputs = outputs
        self._bound: list[Tensor | None] = [None] * len(inputs)

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Run the graph and write all outputs into `outputs`; raise `ValueError` if an output has another shape."""
        for at, name in enumerate(self._inputs):
            if self._bound[at] is not inputs[name]:
                self._request.set_input_tensor(at, inputs[name].tensor)
                self._bound[at] = inputs[name]
        for name, held in outputs.items():
            self._request.set_output_tensor(self._outputs[name], held.tensor)
        self._request.infer()
        for name, held in outputs.items():
            found = tuple(self._request.get_output_tensor(self._outputs[name]).shape)
            if found != held.shape:
                raise ValueError(f"{name} has the shape {found}, expected {held.shape}")

    def variables(self) -> dict[str, Model]:
        """Return the variables by name; their `state` can be read and set."""
        return {each.name: each for each in self._request.query_state()}


class Compiled:
    """A compiled graph; threads that run it in parallel have separate requests."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._inputs = [each.get_node().get_friendly_name() for each in model.inputs]  # others have names of nodes, too
        self.outputs = {name: at for at, each in enumerate(model.outputs) for name in each.get_names()}
        self._free: deque[Request] = deque()  # its operations are atomic

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """See `Request.run`."""
        try:
            request = self._free.pop()
        except IndexError:
            request = self.request()
        request.run(inputs, outputs)
        self._free.append(request)  # a request that failed is not reused

    def request(self) -> Request:
        """Return a new request, whose variables are empty."""
        return Request(self.model, self._inputs, self.outputs)

    def count(self) -> int:
        """Return the number of nodes that compute something."""
        nodes = self.model.get_runtime_model().get_ops()
        return sum(text_of(each.get_rt_info()["layerType"]) not in UNCOUNTED for each in nodes)


def text_of(value: Model) -> str:
    """Return a value of OpenVINO as text: it is a string or an object that contains one."""
    return value if isinstance(value, str) else str(value.astype(str))
