"""ONNX's reference evaluator, in Python: slow, but it follows the ONNX standard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.graphs import read_model
from txport.errors import BundleError, UnsupportedError, brief
from txport.runtimes.base import GraphPorts, GraphRuntime, running
from txport.runtimes.foreign.lengths import foreign_runtime
from txport.runtimes.portable import PortableRuntime
from txport.runtimes.single import SingleRuntime
from txport.system.arrays import Array
from txport.targets.ports import GENERATE, Port


class MatMul(OpRun):
    """MatMul with sums in fp32, as in all engines: NumPy rounds each sum to fp16, and has no BLAS for fp16."""

    op_domain = ""

    def _run(self, one: Array, other: Array) -> tuple[Array]:
        return (np.matmul(one.astype(np.float32), other.astype(np.float32)).astype(one.dtype),)


class LayerNormalization(OpRun):
    """LayerNormalization with mean and variance in fp32, as the standard requires for `stash_type` 1.

    The evaluator of onnx up to 1.23 computes them in the dtype of the input, where squares overflow in fp16
    (https://github.com/onnx/onnx/pull/8439).
    """

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Array, ...]:
        assert stash_type == onnx.TensorProto.FLOAT
        values = x.astype(np.float32)
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = values.mean(axes, keepdims=True)
        deviation = values - mean
        inverse = 1 / np.sqrt(np.square(deviation).mean(axes, keepdims=True) + np.float32(epsilon))
        normal = (deviation * inverse).astype(x.dtype) * scale
        return (normal if bias is None else normal + bias), mean, inverse


class GatherElements(OpRun):
    """GatherElements over more than 64 values, the limit of `np.choose`, which the evaluator of onnx 1.23 uses."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        return (np.take_along_axis(data, indices, axis=axis),)


class ReferenceEngine:
    """The graphs of the given roles, by default all but the single graph; tensors are NumPy arrays."""

    def __init__(self, bundle: Bundle, roles: Iterable[str] | None = None) -> None:
        roles = bundle.manifest.driven if roles is None else roles
        self._graphs = {role: _evaluator(bundle.file(role)) for role in roles}

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        graph = self._graphs[role]
        inputs = tuple(map(_port, graph.input_names, graph.input_types))
        return inputs, tuple(map(_port, graph.output_names, graph.output_types))

    def run(self, role: str, inputs: dict[str, Array], outputs: list[str], *, last: bool = False) -> dict[str, Array]:
        """See `Engine.run`."""
        with running(role, "onnx's evaluator"), np.errstate(all="ignore"):
            return dict(zip(outputs, self._graphs[role].run(outputs, inputs), strict=True))

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return {role: {"ReferenceEvaluator": len(graph.nodes_)} for role, graph in self._graphs.items()}

    def from_numpy(self, array: Array) -> Array:
        """See `Engine.from_numpy`."""
        return np.asarray(array)

    def to_numpy(self, tensor: Array) -> Array:
        """See `Engine.to_numpy`."""
        return tensor


def _evaluator(file: Path) -> ReferenceEvaluator:
    model = read_model(file)
    try:
        return ReferenceEvaluator(model, new_ops=[MatMul, LayerNormalization, GatherElements])
    except Exception as error:  # its errors have no common base class
        raise BundleError(f"onnx {onnx.__version__} can't evaluate {file}: {brief(error)}; export it again") from error


def _port(name: str, kind: onnx.TypeProto) -> Port:
    tensor = kind.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return Port(name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims)


def require(provider: str) -> None:
    """See `runtimes.require`."""
    if provider != "cpu":
        raise UnsupportedError(f"the reference runtime runs on the cpu only, got provider {provider!r}")


def load(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a bundle on the reference evaluator; raise `UnsupportedError` for more than one thread."""
    if isinstance(bundle.manifest, ForeignManifest):
        return foreign_runtime(_engine(bundle, threads), bundle.manifest)
    return PortableRuntime(_engine(bundle, threads), bundle.manifest)


def load_single(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> SingleRuntime[Any]:
    """Start the single graph of a bundle; raise `UnsupportedError` for more than one thread."""
    return SingleRuntime(_engine(bundle, threads, [GENERATE]), bundle.manifest)


def _engine(bundle: Bundle, threads: int | None, roles: Iterable[str] | None = None) -> ReferenceEngine:
    if threads not in (None, 1):
        raise UnsupportedError(f"the reference runtime has one thread, got {threads}")
    return ReferenceEngine(bundle, roles)
