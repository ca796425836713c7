"""Attributes of attention operators for all targets: scale, soft cap, position bias; and the form of GELU."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from txport.exporters.forms import FORMS
from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.symbols import Symbol, Tracer
from txport.models.parts import Attention, DotProduct, SoftCap


def bias_of(part: Attention, distances: Tensor | None) -> Tensor | None:
    """Return the position bias that is added to the scores, or None."""
    core = part.core
    return core.bias(distances) if isinstance(core, DotProduct) and core.bias is not None else None


def cap_of(part: Attention) -> SoftCap | None:
    """Return the soft cap of the scores, or None."""
    return part.core.cap if isinstance(part.core, DotProduct) else None


def scale_of(part: Attention) -> dict[str, float]:
    """Return the `scale` attribute, or {} for the operators' default, 1 / sqrt(H)."""
    scale = float(getattr(part.core, "scale", 0.0))
    return {} if scale == part.head_size**-0.5 else {"scale": scale}


def float32(value: float) -> float:
    """Round a number to fp32, the precision of an ONNX attribute."""
    return float(np.float32(value))


def gelu(tracer: Tracer, x: Symbol, approximate: str = "none") -> Symbol:
    """Return a FastGelu for the tanh approximation: ONNX Runtime does not fuse its nodes on the CPU."""
    if approximate != "tanh":
        found: Symbol = FORMS["gelu"](tracer, x, approximate)
        return found
    return tracer.given(tracer.op("gelu", "FastGelu", [x.value], MICROSOFT), x.examples)
