"""The cause of a failed export in fp16: a value beyond its range, and the part that computes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.proof.parity.cases import draw_cases
from txport.proof.parity.check import exact_of, fitting_threads
from txport.proof.parity.replay import Reference

LARGEST = float(torch.finfo(torch.half).max)
FIX = {
    "cuda": "export with precision='bf16'",
    "portable": "export with precision='fp32', or with precision='bf16' and target='cuda'",
}


class _BeyondError(Exception):
    """A part of a model has computed a value beyond the range."""

    def __init__(self, name: str, value: float) -> None:
        super().__init__(f"{name} reaches {value:.6g}")


@np.errstate(over="ignore", invalid="ignore")
def find_overflow(bundle: Bundle, checkpoint: Checkpoint, *, most_cases: int | None = None) -> str | None:
    """Return a sentence about the first value beyond the range of fp16; None if none is, and for other bundles.

    The values are those of PyTorch in float64, in the first `most_cases` of the cases of `check`.
    """
    if isinstance(bundle.manifest, ForeignManifest) or bundle.manifest.arithmetic != "fp16":
        return None
    reason = next((f"{name} holds {size:.6g}" for name, size in _sizes(checkpoint) if size > LARGEST), None)
    reason = reason or _computed(bundle, checkpoint, most_cases)
    fix = FIX[bundle.manifest.target]
    return reason and f"{reason}, beyond the range of fp16, whose largest value is {LARGEST:.0f}; {fix}"


def _sizes(checkpoint: Checkpoint) -> list[tuple[str, float]]:
    return [(name, float(tensor.abs().max())) for name, tensor in checkpoint.tensors if tensor.numel()]


def _computed(bundle: Bundle, checkpoint: Checkpoint, most_cases: int | None) -> str | None:
    """Run the model until the output of a part is beyond the range; return what it reaches."""
    with fitting_threads(checkpoint):
        exact = exact_of(bundle, checkpoint)
        hooks = [part.register_forward_hook(_watch(name)) for name, part in exact.model.named_modules() if name]
        reference = Reference(exact, bundle.manifest)
        try:
            for case in draw_cases(bundle, 0)[:most_cases]:
                for _ in reference.replay(case, 0):
                    pass
        except _BeyondError as beyond:
            return str(beyond)
        finally:
            for hook in hooks:
                hook.remove()
    return None


def _watch(name: str) -> Callable[[object, object, object], None]:
    def watch(_part: object, _inputs: object, output: object) -> None:
        for each in output if isinstance(output, tuple) else (output,):
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel():
                finite = each[each.abs() < torch.finfo(each.dtype).max / 4]  # masks are infinite, or near the maximum
                largest = float(finite.abs().max()) if finite.numel() else 0.0
                if largest > LARGEST:
                    raise _BeyondError(name, largest)

    return watch
