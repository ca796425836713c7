"""What attentions are as operators, whatever the target: their factor, their cap, what positions add; and gelu."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from txport.exporters.forms import FORMS
from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.symbols import Symbol, Tracer
from txport.models.parts import Attention, DotProduct, SoftCap


def bias_of(part: Attention, distances: Tensor | None) -> Tensor | None:
    """What positions add to the scores."""
    core = part.core
    return core.bias(distances) if isinstance(core, DotProduct) and core.bias is not None else None


def cap_of(part: Attention) -> SoftCap | None:
    """What bends the scores, where something does."""
    return part.core.cap if isinstance(part.core, DotProduct) else None


def scale_of(part: Attention) -> dict[str, float]:
    """The factor of the scores, unless it is the operators' own, 1 / sqrt(H)."""
    scale = float(getattr(part.core, "scale", 0.0))
    return {} if scale == part.head_size**-0.5 else {"scale": scale}


def float32(value: float) -> float:
    """As an attribute holds it."""
    return float(np.float32(value))


def gelu(tracer: Tracer, x: Symbol, approximate: str = "none") -> Symbol:
    """By tanh as one operator; ONNX Runtime does not fuse its nodes on the CPU."""
    if approximate != "tanh":
        found: Symbol = FORMS["gelu"](tracer, x, approximate)
        return found
    return tracer.given(tracer.op("gelu", "FastGelu", [x.value], MICROSOFT), x.examples)
