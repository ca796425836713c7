"""The operators that model parts become: their attributes, their counts in a trace, and the check of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from txport.exporters.check import GraphError
from txport.exporters.fused.packs import MICROSOFT, PACKABLE
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.symbols import Symbol, Tracer
from txport.models.parts import Attention, DotProduct, Linear, SoftCap

PLAIN, PACKED = "plain attention", "packed projections"


class Counted:
    """Ops that count the operators that model parts became."""

    can_split = True
    source: Tensor | None = None

    def __init__(self) -> None:
        self.became: Counter[str] = Counter()
        self.kinds: Counter[object] = Counter()  # kinds of the attentions that became operators

    def count(self, kind: Any) -> None:
        """Count an attention that became an operator of this kind."""
        self.became[kind.operator] += 1
        self.kinds[kind] += 1

    def wanted(self, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        return x

    def packed(self, x: Tensor, *maps: Linear) -> Tensor:
        """Return the concatenated outputs of several linear layers for the same input.

        They become one product if their weights differ, and all or none of them have a bias.
        """
        outputs = [each(x) for each in maps]
        weights = {id(each.weight) for each in maps}
        if len({each.bias is None for each in maps}) > 1 or len(maps) < 2 or len(weights) < len(maps):
            return torch.cat(outputs, -1)
        self.became[PACKED] += 1
        return concatenated(*outputs)

    def plain(
        self, part: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, distances: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute an attention with plain nodes; return (B, T, N x H) and the attention weights."""
        self.became[PLAIN] += 1
        mixed, weights = part.core(query, key, value, mask, distances)
        return mixed.transpose(1, 2).flatten(2), weights


def check_parts(
    model: ir.Model,
    became: Mapping[str, int],
    kinds: Mapping[object, int],
    packed: int,
    role: str,
    *,
    operators: Sequence[str],
    kind_of: Callable[[ir.Node], Any],
    others: Sequence[str] = (),
) -> None:
    """Raise `GraphError` if the graph does not have the operators that were counted in its trace.

    Nodes of the attention `operators` are also compared by kind: `kinds` as counted, `kind_of` for a node. Therefore a
    lost window, soft cap or rotary embedding is detected. For `others`, only the number is compared.
    """
    found = Counter(node.op_type for node in model.graph)
    found[PACKED] = packed
    wanted = {name: became.get(name, 0) for name in (*operators, *others, PACKED)}
    missed = [f"{found[name]} {name} instead of {count}" for name, count in wanted.items() if found[name] != count]
    if not missed:
        of_kind = Counter(kind_of(node) for node in model.graph if node.op_type in operators)
        different = sorted(kind for kind in {*of_kind, *kinds} if of_kind[kind] != kinds.get(kind, 0))
        missed = [f"{of_kind[kind]} {kind} instead of {kinds.get(kind, 0)}" for kind in different]
    if missed:
        raise GraphError(f"the {role} graph was not fused as this model's parts say: {', '.join(missed)}")


def bias_of(part: Attention, distances: Tensor | None) -> Tensor | None:
    """Return the position bias that is added to the scores, or None."""
    core = part.core
    return core.bias(distances) if isinstance(core, DotProduct) and core.bias is not None else None


def cap_of(part: Attention) -> SoftCap | None:
    """Return the soft cap of the scores, or None."""
    return part.core.cap if isinstance(part.core, DotProduct) else None


def sinks_of(part: Attention) -> Tensor | None:
    """Return the scores of the sinks (N, 1, 1), or None."""
    return part.core.sinks if isinstance(part.core, DotProduct) else None


def scale_of(part: Attention) -> dict[str, float]:
    """Return the `scale` attribute, or {} for the operators' default, 1 / sqrt(H)."""
    scale = float(getattr(part.core, "scale", 0.0))
    return {} if scale == part.head_size**-0.5 else {"scale": scale}


def concatenated(*outputs: Tensor) -> Tensor:
    """Concatenate the outputs (..., D) of linear layers of the same input, which `pack_projections` makes one layer."""
    if has_torch_function(outputs):
        found: Tensor = handle_torch_function(concatenated, outputs, *outputs)
        return found
    return torch.cat(outputs, -1)


def concatenation(tracer: Tracer, *outputs: Symbol) -> Symbol:
    """Return a Concat that `pack_projections` knows."""
    found: Symbol = FORMS["cat"](tracer, outputs, -1)
    tracer.nodes[-1].meta[PACKABLE] = True
    return found


def float32(value: float) -> float:
    """Round a number to fp32, the precision of an ONNX attribute."""
    return float(np.float32(value))


def gelu(tracer: Tracer, x: Symbol, approximate: str = "none") -> Symbol:
    """Return a FastGelu for the tanh approximation: ONNX Runtime does not fuse its nodes on the CPU."""
    if approximate != "tanh":
        found: Symbol = FORMS["gelu"](tracer, x, approximate)
        return found
    return tracer.given(tracer.op("gelu", "FastGelu", [x.value], MICROSOFT), x.examples)
