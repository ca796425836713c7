"""ONNX's own evaluator, in Python: slow, but the standard's word on what a graph means."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from txport.models.bundle import Bundle
from txport.models.errors import UnsupportedError
from txport.models.ports import Port
from txport.runtimes.base import GraphPorts, GraphRuntime
from txport.runtimes.portable import PortableRuntime


class ReferenceEngine:
    """The graphs of a bundle; tensors are arrays."""

    def __init__(self, bundle: Bundle) -> None:
        self._graphs = {role: ReferenceEvaluator(str(bundle.file(role))) for role in bundle.manifest.graphs}

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        graph = self._graphs[role]
        inputs = tuple(map(_port, graph.input_names, graph.input_types))
        return inputs, tuple(map(_port, graph.output_names, graph.output_types))

    def run(self, role: str, inputs: dict[str, NDArray[Any]], outputs: list[str]) -> dict[str, NDArray[Any]]:
        """See `Engine.run`."""
        return dict(zip(outputs, self._graphs[role].run(outputs, inputs), strict=True))

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return {role: {"ReferenceEvaluator": len(graph.nodes_)} for role, graph in self._graphs.items()}

    def from_numpy(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Engine.from_numpy`."""
        return np.asarray(array)

    def to_numpy(self, tensor: NDArray[Any]) -> NDArray[Any]:
        """See `Engine.to_numpy`."""
        return tensor


def _port(name: str, kind: onnx.TypeProto) -> Port:
    tensor = kind.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return Port(name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims)


def require(provider: str) -> None:
    """See `runtimes.require`."""
    if provider != "cpu":
        raise UnsupportedError(f"the reference runtime runs on the cpu only, got provider {provider!r}")


def load(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a bundle on the reference evaluator, which knows the CPU and one thread only."""
    if threads not in (None, 1):
        raise UnsupportedError(f"the reference runtime has one thread, got {threads}")
    return PortableRuntime(ReferenceEngine(bundle), bundle.manifest)
