"""One module -> one graph: the module runs once on tensors that record the operations applied to them.

`torch.onnx.export` produces the same nodes, but also reasons about every symbolic stride: a decoder of six layers takes
it half a minute, and this tracer a few milliseconds. A function without an entry in `forms` raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from txport.bundles.manifest import Manifest
from txport.bundles.metadata import metadata
from txport.checkpoints.weights.streamed import Read
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.symbols import Form, Symbol, Tracer
from txport.models.model import Model
from txport.models.parts import Window
from txport.targets import ports
from txport.targets.ports import Graph, Port
from txport.version import __version__

# Two lengths for each dynamic dim: a size that differs between the two runs is dynamic. The lengths are chosen so that
# no dim, and no sum, difference or product of two dims, has the two lengths of another dim or the same length twice.
# Exceptions: `ALL_ROWS` is batch x beams, and the last entry is a sum.
SIZES = {
    ports.BATCH: (3, 2),
    ports.TARGET: (7, 25),
    ports.PAST_SOURCE: (16, 5),
    ports.PAST_TARGET: (9, 11),
    ports.SOURCE: (26, 12),
    ports.BEAMS: (2, 5),
    ports.ROOM: (15, 7),
    ports.ALL_ROWS: (3 * 2, 2 * 5),
    ports.COUNT: (4, 9),
    ports.ASKED: (5, 17),
    ports.TOKENS: (18, 2),
    ports.PAST: (6, 12),
    f"{ports.PAST} + {ports.TOKENS}": (6 + 18, 12 + 2),
}
PARTS, KINDS = "txport.became", "txport.kinds"
IR_VERSION = 10


class GraphModule(nn.Module):
    """A module that becomes a graph: its arguments and results are the ports, computed by a model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model


@torch.no_grad()
def trace(
    module: nn.Module, graph: Graph, opset: int, forms: Mapping[str, Form] = FORMS, read: Read | None = None
) -> ir.Model:
    """Trace a module to ONNX. Its arguments are the inputs of `graph`; all dynamic dims of the ports stay dynamic.

    Weights have the names of the checkpoint. `forms`: the ONNX conversion of each function. `read`: loads weights on
    the meta device by name when the graph is written.

    Raises `UnsupportedError` for a function without an ONNX conversion.
    """
    tracer = Tracer(forms, weight_names(module), opset, read)
    values = [value_of(port) for port in graph.inputs]
    sizes = lengths_for(module)
    tracer.dims.update((sizes[dim], dim) for port in graph.inputs for dim in port.dims if isinstance(dim, str))
    inputs = [Symbol(tracer, value, examples(port, sizes)) for value, port in zip(values, graph.inputs, strict=True)]
    with tracer:
        found = module.eval()(*inputs)
    outputs = [each.value for each in (found if isinstance(found, tuple) else (found,))]
    for at, port in enumerate(graph.outputs):
        if outputs[at] in (*values, *outputs[:at]):  # a value can't have two names
            outputs[at] = tracer.given(tracer.op("copy", "Identity", [outputs[at]]), found[at].examples).value
        outputs[at].name = port.name
    initializers = list(tracer.initializers.values())
    opsets = {"": opset, **{node.domain: 1 for node in tracer.nodes if node.domain}}
    body = ir.Graph(
        values, outputs, nodes=tracer.nodes, initializers=initializers, opset_imports=opsets, name=graph.role
    )
    model = ir.Model(body, ir_version=IR_VERSION)
    ops = getattr(module, "ops", None)
    model.meta[PARTS], model.meta[KINDS] = (dict(getattr(ops, name, {})) for name in ("became", "kinds"))
    return model


def parts_of_trace(model: ir.Model) -> dict[str, int]:
    """Return operator -> number of model parts that became this operator, as counted in the trace."""
    found: dict[str, int] = model.meta.get(PARTS, {})
    return found


def kinds_of_trace(model: ir.Model) -> dict[object, int]:
    """Return kind -> number of attentions of this kind that became operators, as counted in the trace."""
    found: dict[object, int] = model.meta.get(KINDS, {})
    return found


def weight_names(module: nn.Module) -> dict[int, str]:
    """Return id -> checkpoint name of each parameter and buffer of a model, or of a graph module of one.

    A tied weight has the last of its names.
    """
    named = chain(module.named_buffers(), module.named_parameters(remove_duplicate=False))
    prefix = "model." if isinstance(module, GraphModule) else ""
    return {id(tensor): name.removeprefix(prefix) for name, tensor in named}


def lengths_for(module: nn.Module) -> Mapping[str, tuple[int, int]]:
    """Return `SIZES`; if windows to both sides compute in blocks, one source has more than one block of any window.

    Its length is a prime: then no number of whole blocks is the length itself, nor that of other rows.
    """
    sizes = [each.size for each in module.modules() if isinstance(each, Window) and each.both_ways]
    if not sizes:
        return SIZES
    many = next(each for each in count(SIZES[ports.SOURCE][0] + max(sizes)) if all(each % by for by in range(2, each)))
    return {**SIZES, **{dim: (many, SIZES[dim][1]) for dim in (ports.SOURCE, ports.TOKENS)}}


def examples(port: Port, sizes: Mapping[str, tuple[int, int]] = SIZES) -> tuple[Tensor, Tensor]:
    """Return zero tensors of a port for the two sets of lengths."""
    dtype = getattr(torch, port.dtype)
    one, other = ([sizes[dim][at] if isinstance(dim, str) else dim for dim in port.dims] for at in (0, 1))
    return torch.zeros(one, dtype=dtype), torch.zeros(other, dtype=dtype)


def value_of(port: Port) -> ir.Value:
    """Return a graph input or output with the name, type and dims of the port."""
    dtype = ir.DataType.from_numpy(np.dtype(port.dtype))
    return ir.Value(name=port.name, type=ir.TensorType(dtype), shape=ir.Shape(port.dims))


def sign(model: ir.Model, role: str, manifest: Manifest) -> None:
    """Write producer, role and metadata of the manifest into the model."""
    model.producer_name = "txport"
    model.producer_version = __version__
    model.graph.name = role
    model.metadata_props.update(metadata(manifest, role))
