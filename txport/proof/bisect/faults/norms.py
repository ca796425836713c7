"""Faults of a norm: another kind of norm, a missing weight or bias, or another epsilon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txport.models.parts import RMSNorm, UnbiasedNorm
from txport.proof.bisect.calls import altered
from txport.proof.bisect.faults.common import fitted
from txport.proof.bisect.faults.evidence import Cause, Evidence

EPSILON = "epsilon"
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


def _read(evidence: Evidence) -> tuple[Any, Tensor, Tensor, Tensor | None]:
    """Return the norm, its input, its weight and its bias (None if it has none)."""
    assert evidence.call is not None
    norm: Any = evidence.call.part
    x = evidence.call.arguments[0]
    assert x is not None
    return norm, x, norm.weight, getattr(norm, "bias", None)


def wrong_epsilon(evidence: Evidence) -> Cause | None:
    """An epsilon in the graph that is not the model's."""
    names = (f"{module}.{EPSILON}" for module in evidence.modules)
    return next((evidence.wrong[name].cause for name in names if name in evidence.wrong), None)


def epsilon_cause(found: float, expected: float) -> Cause:
    """Return the cause for an epsilon `found` in place of the model's."""
    return Cause(EPSILON, f"epsilon is {found:.2g}, the model's is {expected:.3g}")


@torch.inference_mode()
def other_norm(evidence: Evidence) -> Cause | None:
    """A norm of another kind with the same weight, with or without the bias."""
    norm, x, weight, bias = _read(evidence)
    own = next(name for kind, name in OWN.items() if isinstance(norm, kind))
    for name, normalise in NORMALISE.items():
        found = normalise(x, norm.eps) * weight
        ways = {"": found if bias is None else found + bias, ", without its bias": found}
        for how, hypothesis in ways.items():
            if name != own and evidence.explains(hypothesis.numpy()):
                return Cause("norm", f"{name} in place of {own}{how}")
    return None


@torch.inference_mode()
def other_affine(evidence: Evidence) -> Cause | None:
    """A norm without its weight or bias, or with 1 + weight."""
    norm, x, weight, bias = _read(evidence)
    own = next(name for kind, name in OWN.items() if isinstance(norm, kind))
    plain = NORMALISE[own](x, norm.eps)
    shift = 0.0 if bias is None else bias
    ways = {"its weight is left out": plain + shift, "1 is added to its weight": plain * (1 + weight) + shift}
    if bias is not None:
        ways["its bias is not added"] = plain * weight
    return next((Cause("weight", what) for what, found in ways.items() if evidence.explains(found.numpy())), None)


@torch.inference_mode()
def epsilon(evidence: Evidence) -> Cause | None:
    """A norm with another epsilon; the value that fits best is tried."""
    norm, x, _, _ = _read(evidence)

    def run(eps: float) -> Any:
        return altered(norm, eps=eps)(x).numpy()

    found = fitted(evidence, run, 1e-12, 10.0)
    if not evidence.explains(run(found)):
        return None
    return epsilon_cause(found, norm.eps)
