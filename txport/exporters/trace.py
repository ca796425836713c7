"""One module -> one graph, straight from PyTorch's exporter, with every dynamic dim of its ports."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from txport import __version__
from txport.models.bundle import Manifest
from txport.models.ports import (
    ALL_ROWS,
    BATCH,
    BEAMS,
    PAST_SOURCE,
    PAST_TARGET,
    ROOM,
    SOURCE,
    TARGET,
    Graph,
    Port,
)

# Each dynamic dim has a length of its own, none of them 0 or 1; only the rows are batch x beams.
SIZES = {BATCH: 2, TARGET: 3, PAST_SOURCE: 4, PAST_TARGET: 5, SOURCE: 6, BEAMS: 7, ROOM: 8, ALL_ROWS: 14}


def trace(module: nn.Module, graph: Graph, opset: int) -> ir.Model:
    """A module whose arguments are the inputs of `graph`, as PyTorch's exporter sees it."""
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            tuple(example(port) for port in graph.inputs),
            dynamic_shapes=_dynamic_shapes(module, graph),
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            opset_version=opset,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model


def example(port: Port) -> Tensor:
    """A tensor for tracing."""
    shape = [SIZES[dim] if isinstance(dim, str) else dim for dim in port.dims]
    return torch.ones(shape, dtype=getattr(torch, port.dtype))


def value_of(port: Port) -> ir.Value:
    """A graph's input or output, as its port says."""
    dtype = ir.DataType.from_numpy(np.dtype(port.dtype))
    return ir.Value(name=port.name, type=ir.TensorType(dtype), shape=ir.Shape(port.dims))


def _dynamic_shapes(module: nn.Module, graph: Graph) -> tuple[Any, ...]:
    """The names of the dynamic dims, nested as the module's `forward` takes its arguments."""
    shapes = [{axis: dim for axis, dim in enumerate(port.dims) if isinstance(dim, str)} for port in graph.inputs]
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:named], tuple(shapes[named:]))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and of dims that it renames; none of it is the user's to mend."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def sign(model: ir.Model, role: str, manifest: Manifest) -> None:
    """Say in the file what it is and what it was made from."""
    model.producer_name, model.producer_version = "txport", __version__
    model.graph.name = role
    model.metadata_props.update(
        {
            "txport.target": manifest.target,
            "txport.precision": manifest.precision,
            "txport.checkpoint": manifest.checkpoint["sha256"],
        }
    )
