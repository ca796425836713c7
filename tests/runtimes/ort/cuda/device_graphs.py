"""Graphs of a few nodes that a device can run, so that it is tested without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from txport.runtimes.ort.cuda.device import Binding, Device, Tensor, bind, bytes_of


def counter(size: int = 4) -> onnx.ModelProto:
    """count + step -> next, which may lie on count; a step is read on the host."""
    ports = [helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in ("count", "step", "next")]
    graph = helper.make_graph([helper.make_node("Add", ["count", "step"], ["next"])], "counter", ports[:2], ports[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def session_of(model: onnx.ModelProto, providers: Any = ("CPUExecutionProvider",)) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=list(providers))


def tensor(device: Device, shape: tuple[int, ...], dtype: str = "int64") -> Tensor:
    return Tensor(device.allocate(bytes_of(shape, dtype)), 0, shape, dtype)


def counting(device: Device, session: Any, count: Tensor, step: int = 1) -> Binding:
    """A binding that counts where the count lies."""
    return bind(device, "counter", session, {"count": count}, {"next": count}, {"step": np.array([step])})
