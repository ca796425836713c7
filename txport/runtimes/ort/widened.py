"""Run a bundle in half precision in fp32 on the CPU: its graphs are cast in memory, and weights keep their values.

Nothing else is rounded to half precision then, so such a bundle is compared with PyTorch as closely as one in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import Maps, mapped, read_model
from txport.errors import BundleError, UnsupportedError, brief
from txport.runtimes.base import GraphPorts, GraphRuntime
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.graphs import Graphs
from txport.runtimes.ort.cuda.host import HostDevice
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.providers import CPU
from txport.runtimes.ort.runtime import OrtEngine, OrtValue
from txport.runtimes.ort.sessions import FOLDING, MOST_FOLDED, Sessions, session_options, start_session
from txport.runtimes.portable import PortableRuntime
from txport.system.arrays import Array
from txport.targets.ports import Graph, Port

FLOAT = onnx.TensorProto.FLOAT
EXTERNAL = onnx.TensorProto.EXTERNAL
HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
FOLDER = "session.model_external_initializers_file_folder_path"
TYPES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")  # attributes with a type


def require(provider: str, precision: str) -> None:
    """See `runtimes.require`."""
    if provider != "cpu":
        raise UnsupportedError(f"graphs are cast to fp32 for the CPU, got provider {provider!r}; use runtime ort")


def load(bundle: Bundle, *, precision: str, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a portable or a cuda bundle in fp32; raise `BundleError` for a graph that can't be cast.

    The driver of a cuda bundle is the same as on a GPU, over a device with stricter checks.
    """
    sessions, ports = start_widened(bundle, threads)
    if not bundle.manifest.made_for.on_gpu:
        return PortableRuntime(WideEngine(sessions, ports), replace(bundle.manifest, precision="fp32"))
    described = {role: widened(graph) for role, graph in bundle.manifest.driven.items()}
    return CudaRuntime(bundle.manifest.facts, Graphs(described, sessions, ports.__getitem__), HostDevice())


class WideEngine(OrtEngine):
    """`Engine` over graphs in fp32, which has the ports of their files, and takes arrays of their types."""

    def __init__(self, sessions: Sessions, ports: Mapping[str, GraphPorts]) -> None:
        super().__init__(sessions)
        self._ports = ports

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._ports[role]

    def from_numpy(self, array: Array) -> OrtValue:
        """See `Engine.from_numpy`."""
        return super().from_numpy(array.astype(np.float32) if array.dtype == np.float16 else array)


def start_widened(bundle: Bundle, threads: int | None) -> tuple[Sessions, dict[str, GraphPorts]]:
    """Start the graphs of a bundle in fp32; return also the ports that they have in their files."""
    ports = dict[str, GraphPorts]()
    sessions = dict[str, Any]()
    weights = Weights(bundle)
    for role in bundle.manifest.driven:
        file = bundle.file(role)
        model = read_model(file, weights=False)
        try:
            ports[role] = ports_of(model)
            options = session_options(threads, weights.take_out(model, role))
            widen(model.graph)
        except (KeyError, TypeError, ValueError) as error:  # onnx has no separate errors for invalid models
            raise BundleError(f"{file} can't be cast to fp32: {brief(error)}; export it again") from error
        options.add_session_config_entry(FOLDER, str(file.parent))  # ONNX Runtime only checks that the files exist
        options.add_session_config_entry("session.disable_prepacking", "1")  # the weights are in memory once
        if bundle.manifest.made_for.is_standard:
            options.add_session_config_entry(FOLDING, str(MOST_FOLDED))
        sessions[role] = start_session(file, CPU, options, {}, model.SerializeToString())
    return Sessions(sessions, weights.values), ports


class Weights:
    """The external weights of a bundle in fp32, stored once for all graphs that share them."""

    def __init__(self, bundle: Bundle) -> None:
        self.values: dict[str, Any] = {}
        self._bundle = bundle
        self._maps = Maps()
        self._known = dict[int, Any]()

    def take_out(self, model: onnx.ModelProto, role: str) -> dict[str, Any]:
        """Return the external weights of a graph as OrtValues by name."""
        taken = {}
        for tensor in model.graph.initializer:
            if tensor.data_location != EXTERNAL:
                continue
            array = mapped(tensor, self._bundle.file(role), self._maps)
            if id(array) not in self._known:
                wide = array.astype(np.float32) if tensor.data_type in HALVES else np.array(array)
                self._known[id(array)] = ort.OrtValue.ortvalue_from_numpy(wide)
            taken[tensor.name] = self.values[f"{role} {tensor.name}"] = self._known[id(array)]
        return taken


def widen(graph: onnx.GraphProto) -> None:
    """Cast a graph from half precision to fp32 in place; of external weights, only the declared type changes."""
    for tensor in _tensors(graph):
        if tensor.data_type not in HALVES:
            continue
        if tensor.data_location == EXTERNAL:
            tensor.data_type = FLOAT
        else:
            wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = FLOAT
    for attribute in (each for node in graph.node for each in node.attribute):
        if attribute.name in TYPES and attribute.i in HALVES:
            attribute.i = FLOAT


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield initializers and constants; graphs of this target have no subgraphs."""
    yield from graph.initializer
    for attribute in (each for node in graph.node for each in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t


def widened(graph: Graph) -> Graph:
    """Return the graph description with fp32 ports instead of half precision."""
    inputs, outputs = (
        tuple(replace(port, dtype="float32") if port.dtype in ("float16", "bfloat16") else port for port in side)
        for side in (graph.inputs, graph.outputs)
    )
    return replace(graph, inputs=inputs, outputs=outputs)


def ports_of(model: onnx.ModelProto) -> GraphPorts:
    """Return the inputs and outputs of a model as in its file."""
    inputs, outputs = (tuple(map(_port, side)) for side in (model.graph.input, model.graph.output))
    return inputs, outputs


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return Port(value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims)
