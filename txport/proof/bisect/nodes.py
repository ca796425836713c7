"""The wrong node within a part: the first node whose value does not exist anywhere in PyTorch's part.

PyTorch's values inside a part are known up to their layout, so sorted values are compared. All masked scores count as
equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.nn import functional as F

from txport.models.parts import Attention, Embedding, FeedForward, GatedFeedForward
from txport.proof.bisect.causes import lost_summand
from txport.proof.bisect.evidence import GraphEvidence
from txport.proof.bisect.isolation import Runner, isolate, only
from txport.proof.faults import feed_forward
from txport.proof.faults.attention import inner_values, read_by
from txport.proof.faults.inputs import position_rows
from txport.system.arrays import Array

MASKED = -1e3  # below every score that is not masked
MASK_VALUES = (0.0, 1.0, MASKED)


def guilty_node(evidence: GraphEvidence) -> str:
    """Describe the first wrong node of a part, or its last node: operator, name and scalar attributes."""
    if not evidence.span.nodes or lost_summand(evidence) is not None:
        return ""
    known = [_sorted(each) for each in _known(evidence)]
    values = _run(evidence)
    allowed = max(evidence.finding.worst.allowed, 1e-30)
    for node in evidence.span.nodes:
        for output in node.outputs:
            value = values.get(str(output.name))
            if value is not None and not _is_known(_sorted(value), known, allowed):
                return _describe(node)
    return _describe(evidence.span.nodes[-1])


def _run(evidence: GraphEvidence) -> dict[str, Array]:
    """Return the floating-point outputs of the part's nodes that depend on its inputs, with PyTorch's values fed in."""
    finding = evidence.finding
    model = finding.probe.copy()
    varying = _varying(evidence)
    values = (str(value.name) for node in evidence.span.nodes for value in node.outputs)
    names = [name for name in values if name in varying]
    if not names:
        return {}
    isolate(model, finding.probe.taps, finding.probe.dtype)
    shown = Runner(only(model, names), finding.probe.folder, packs=False).run(finding.observation.feed)
    return {name: shown[name] for name in names if shown[name].dtype.kind == "f"}


def _varying(evidence: GraphEvidence) -> set[str]:
    """Return the names of values that depend on the part's inputs; the others are weights in another layout."""
    found = {*evidence.span.reads, *evidence.span.inputs}
    for node in evidence.span.nodes:
        if any(value is not None and value.name in found for value in node.inputs):
            found.update(str(value.name) for value in node.outputs)
    return found


def _sorted(value: Array) -> Array:
    return np.sort(np.maximum(np.nan_to_num(value.astype(np.float64), nan=np.inf), MASKED), axis=None)


def _is_known(value: Array, known: list[Array], allowed: float) -> bool:
    if value.size < 2 or np.isin(value, MASK_VALUES).all():
        return True
    return any(each.size == value.size and np.abs(each - value).max() <= allowed for each in known)


def _known(evidence: GraphEvidence) -> Iterator[Array]:
    """Yield the values that PyTorch computes in this part, its inputs and result included."""
    yield evidence.expected
    yield from evidence.reads.values()
    yield from evidence.finding.observation.call.inputs.values()
    kind = evidence.kind if isinstance(evidence.kind, type) else object
    if issubclass(kind, Attention):
        yield from inner_values(read_by(evidence))
    elif issubclass(kind, Embedding):
        yield from position_rows(evidence)
    elif issubclass(kind, FeedForward | GatedFeedForward):
        gate, up = feed_forward.before_activation(*feed_forward.read_by(evidence))
        yield from (up.numpy(), *_activated(gate))
    elif issubclass(kind, nn.Linear):
        named = (evidence.model.get_submodule(module) for module in evidence.finding.tap.modules)
        biases: list[Any] = [getattr(each, "bias", None) for each in named]
        if all(isinstance(bias, torch.Tensor) for bias in biases):
            yield evidence.expected - np.concatenate([bias.detach().numpy() for bias in biases])


def _activated(x: torch.Tensor) -> Iterator[Array]:
    """Yield the intermediate values of relu, gelu, silu and quick_gelu."""
    error = torch.erf(x / 2**0.5)
    steps = (x / 2**0.5, error, 1 + error, (1 + error) / 2, x * (1 + error), torch.sigmoid(x), F.relu(x), x)
    yield from (each.numpy() for each in (*steps, 1.702 * x, torch.sigmoid(1.702 * x)))


def _describe(node: ir.Node) -> str:
    kinds = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
    values = {name: each.value for name, each in node.attributes.items() if each.type in kinds}
    plain = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()]
    attributes = f" ({', '.join(plain)})" if plain else ""
    return f"{node.op_type} {node.name or node.outputs[0].name!r}{attributes}"
