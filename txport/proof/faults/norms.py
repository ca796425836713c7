"""Faults of a norm: another kind of norm, a missing weight or bias, or another epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from txport.models.parts import RMSNorm, UnbiasedNorm
from txport.proof.faults.common import EPSILON, with_other
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis

Normalise = Callable[[Tensor, float], Tensor]
OWN = {nn.LayerNorm: "LayerNorm", RMSNorm: "RMSNorm", UnbiasedNorm: "UnbiasedNorm"}


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _variance(x: Tensor, *, unbiased: bool) -> Tensor:
    return x.var(-1, correction=int(unbiased), keepdim=True)


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


NORMALISE: dict[str, Normalise] = {
    "LayerNorm": lambda x, eps: _centred(x) / (_variance(x, unbiased=False) + eps).sqrt(),
    "RMSNorm": lambda x, eps: x / (_mean_square(x) + eps).sqrt(),
    "UnbiasedNorm": lambda x, eps: _centred(x) / (_variance(x, unbiased=True).sqrt() + eps),
    "LayerNorm of the unbiased variance": lambda x, eps: _centred(x) / (_variance(x, unbiased=True) + eps).sqrt(),
    "LayerNorm with epsilon outside the square root": lambda x, eps: (
        _centred(x) / (_variance(x, unbiased=False).sqrt() + eps)
    ),
    "RMSNorm with epsilon outside the square root": lambda x, eps: x / (_mean_square(x).sqrt() + eps),
    "no norm": lambda x, eps: x,
}


@torch.inference_mode()
def other_norm(evidence: Evidence) -> list[Hypothesis]:
    """A norm without its weight or bias, with 1 + weight, or of another kind, with or without the bias."""
    norm: Any = evidence.part_call.part
    x = evidence.part_call.tensor
    bias = getattr(norm, "bias", None)
    shift = 0.0 if bias is None else bias
    own = next(name for kind, name in OWN.items() if isinstance(norm, kind))
    plain = NORMALISE[own](x, norm.eps)
    ways = {
        ("weight", "its weight is left out"): plain + shift,
        ("weight", "1 is added to its weight"): plain * (1 + norm.weight) + shift,
    }
    if bias is not None:
        ways["weight", "its bias is not added"] = plain * norm.weight
    for name, normalise in NORMALISE.items():
        if name != own:
            found = normalise(x, norm.eps) * norm.weight
            ways["norm", f"{name} in place of {own}"] = found + shift
            if bias is not None:
                ways["norm", f"{name} in place of {own}, without its bias"] = found
    return [(Cause(*words), each.numpy()) for words, each in ways.items()]


def epsilon(evidence: Evidence) -> Iterator[Hypothesis]:
    """A norm with another epsilon; the value that fits best is tried."""
    norm: Any = evidence.part_call.part
    x = evidence.part_call.tensor
    found = evidence.fitted(lambda eps: with_other(norm, x, eps=eps).numpy(), 1e-12, 10.0)
    yield epsilon_cause(found, norm.eps), with_other(norm, x, eps=found).numpy()


def epsilon_cause(found: float, expected: float) -> Cause:
    """Return the cause for an epsilon `found` in place of the model's."""
    return Cause(EPSILON, f"epsilon is {found:.2g}, the model's is {expected:.3g}")
