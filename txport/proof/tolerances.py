"""How far a bundle may lie from PyTorch: one table, a line for each precision and provider, each with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.models.errors import UnsupportedError
from txport.proof.measures import Comparison

Array = NDArray[Any]

ANY = "any other"


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal to PyTorch in fp32.

    `largest` bounds the largest absolute difference of a tensor; where it `grows`, it is for values of about 1 and
    is multiplied with the largest value of a tensor beyond that, and where it has an `own`, a tensor may be off by
    so many times as much as PyTorch itself, computing in that precision. `rms` bounds the root mean square of the error
    over that of the tensor, `place` the same over the logits at one place of a target. `noise` is how far a logit
    may move, and `points` by how many percentage points the task's error rate may be worse. `atol` and `rtol` are
    the user's own, tighter bounds.
    """

    precision: str
    provider: str
    largest: float
    noise: float
    points: float
    reason: str
    grows: bool = False
    own: float | None = None
    rms: float | None = None
    place: float | None = None
    atol: float | None = None
    rtol: float | None = None

    def allowed(self, expected: Array) -> float:
        """The largest absolute difference that a tensor may have; infinite where only its RMS counts."""
        top = float(np.abs(expected).max(initial=0.0))
        limit = self.largest * max(1.0, top) if self.grows else self.largest
        relative = None if self.rms is not None else self.rtol  # bounds the RMS there
        if self.atol is None and relative is None:
            return limit
        return min(limit, (self.atol or 0.0) + (relative or 0.0) * top)

    def judge(self, found: Comparison, own_error: Callable[[], float]) -> Comparison:
        """A comparison by what PyTorch itself is off by, if it fails otherwise and that counts; else as it is."""
        if found.passed or self.own is None or not np.isfinite(error := own_error()):
            return found
        return dataclasses.replace(found, allowed=max(found.allowed, self.own * error))

    def noise_of(self, largest: float) -> float:
        """How far a logit may move, where the largest is so large."""
        return self.noise * max(1.0, largest) if self.grows else self.noise

    @property
    def allowed_rms(self) -> float | None:
        """The largest RMS of the error over that of the tensor; None where it does not count."""
        return _tighter(self.rms, self.rtol)

    @property
    def allowed_place(self) -> float | None:
        """As `allowed_rms`, for the logits at one place of a target."""
        return _tighter(self.place, self.rtol)

    def tightened(self, atol: float | None, rtol: float | None) -> Tolerance:
        """The same with bounds of the user's; `UnsupportedError` for one that would allow more than the table."""
        for name, given, most in (("atol", atol, self.noise), ("rtol", rtol, self.rms or self.noise)):
            if given is None:
                continue
            if not given > 0:
                raise UnsupportedError(f"--{name} must be positive, got {given:g}")
            if not given <= most:
                where = f"{self.precision} on {self.provider}"
                mend = "an export that needs more is broken, or needs another --precision"
                raise UnsupportedError(
                    f"--{name} {given:g} allows more than {most:g}, the most for {where} ({self.reason}); {mend}"
                )
        own = self.own if atol is None and rtol is None else None
        return dataclasses.replace(self, atol=atol, rtol=rtol, own=own)

    def to_dict(self) -> dict[str, Any]:
        """As a report records it: the bounds that count, and why."""
        kept = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if math.isinf(self.largest):
            del kept["largest"]
        return kept


def _tighter(limit: float | None, given: float | None) -> float | None:
    return limit if limit is None or given is None else min(limit, given)


FP32 = "rounding in another order: up to 4.4e-5 was seen of g2p-en, at the end of whole targets"
FP16 = "11 bits of significand: 5e-4 for each rounding, which a dozen sublayers add up, growing with the values"
OWN = 2.0  # PyTorch's own rounding errors and another order of them
INT8 = "held against PyTorch with the bundle's own weights: what is left are activations in 8 bits, in every product"
TABLE = (
    Tolerance("fp32", "cpu", 1e-4, 1e-4, 0.1, FP32),
    Tolerance("fp32", "cuda", 1e-4, 1e-4, 0.1, "as on the CPU, since TF32 is off: its 10 bits would need 1e-2"),
    Tolerance(
        "fp32", ANY, 1e-4, 1e-4, 0.1, "fp32 means fp32; one that computes in TF32 or bf16 by itself must not pass"
    ),
    Tolerance("fp16", "cpu", 2e-2, 2e-2, 0.3, FP16, grows=True, own=OWN),
    Tolerance(
        "fp16",
        ANY,
        2e-2,
        2e-2,
        0.3,
        "as on the CPU: fp16 is rounded alike, and sums in fp32 are finer",
        grows=True,
        own=OWN,
    ),
    Tolerance("int8", ANY, math.inf, 3e-1, 0.5, INT8, rms=1.5e-1, place=5e-1),
    Tolerance("int4", ANY, math.inf, 3e-1, 1.0, f"{INT8}, as in int8", rms=1.5e-1, place=5e-1),
)


def tolerance_of(
    precision: str, provider: str = "cpu", atol: float | None = None, rtol: float | None = None
) -> Tolerance:
    """The line of the table, tightened where `atol` or `rtol` say so."""
    lines = [each for each in TABLE if each.precision == precision and each.provider in (provider, ANY)]
    return dataclasses.replace(lines[0], provider=provider).tightened(atol, rtol)
