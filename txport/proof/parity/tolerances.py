"""Tolerances: the allowed errors of a bundle, in a table with one line per precision and provider, and its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from txport.errors import UnsupportedError
from txport.proof.parity.measures import Comparison

ANY = "any other"
DRAWS = 5  # maximum computations in the precision: the first by PyTorch or the best kernels, others at random
# An error of so many times the limit of one draw exceeds the limits of all others. With 8-bit activations, a rounding
# that tips another one changes a position by 36 times what most draws do.
HOPELESS, HOPELESS_RMS = 300.0, 100.0
SUITED = 2.0  # times the error of PyTorch itself with the kernels' roundings, in whole runs of quantised models


@dataclass(frozen=True)
class Tolerance:
    """The allowed error of a precision on a provider, compared with PyTorch in float64.

    The largest difference of a tensor may be `largest` times its largest absolute value, or `own` times the error of
    PyTorch itself, which computes the same tensor in the bundle's precision. `rms` bounds the RMS of the error divided
    by that of the tensor, `place` the same for the logits at one position of a target. On any machine, a logit may
    change by `noise` times the largest logit, or by `rounding` times the error of the best kernels in the worst of
    several draws. The task's error rate may be worse by `points` percentage points. `atol` and `rtol` are the user's
    tighter bounds.
    """

    precision: str
    provider: str
    largest: float
    own: float
    noise: float
    rounding: float
    points: float
    reason: str
    rms: float | None = None
    place: float | None = None
    atol: float | None = None
    rtol: float | None = None

    def allowed(self, largest: float, own_error: float = 0.0) -> float:
        """Return the largest allowed difference of a tensor; infinite if only the RMS is bounded.

        `largest`: the tensor's largest absolute value. `own_error`: the error of PyTorch itself in it.
        """
        limit = math.inf if self.rms is not None else max(self.largest * largest, self.own * own_error)
        relative = None if self.rms is not None else self.rtol  # bounds the RMS there
        if self.atol is None and relative is None:
            return limit
        return min(limit, (self.atol or 0.0) + (relative or 0.0) * largest)

    def judge(self, found: Comparison, largest: float, own: Callable[[int], Comparison]) -> Comparison:
        """Judge a failed comparison again, by the largest error of PyTorch itself in up to `DRAWS` computations.

        If only the RMS is bounded, `SUITED` times that of PyTorch itself is allowed. Comparisons that pass, or fail for
        another reason than a value, are returned unchanged. `own(draw)` compares PyTorch itself.
        """
        if found.passed or found.note:
            return found
        for draw in range(DRAWS):
            error = own(draw)
            if self.rms is not None:
                most = max(found.own_relative or 0.0, error.relative)
                bound = max(found.allowed_relative or 0.0, SUITED * most)
                found = dataclasses.replace(found, own_relative=most, allowed_relative=bound)
                is_settled = found.passed or not found.relative <= HOPELESS_RMS * most
            elif np.isfinite(error.max_abs):
                found = dataclasses.replace(found, allowed=max(found.allowed, self.allowed(largest, error.max_abs)))
                is_settled = found.passed or not found.badness <= HOPELESS
            else:
                is_settled = True
            if is_settled:
                break
        return found

    def noise_of(self, largest: float, own_error: float) -> float:
        """Return the allowed change of a logit, given the largest logit and the error of PyTorch itself."""
        floor = self.noise if self.rms is not None else self.largest
        return max(floor * largest, self.own * own_error if np.isfinite(own_error) else 0.0)

    def lasting_noise(self, largest: float, rounding_error: float) -> float:
        """Return the allowed change of a logit on any machine, given the error of the best kernels."""
        return max(self.noise * largest, self.rounding * rounding_error if np.isfinite(rounding_error) else 0.0)

    @property
    def allowed_rms(self) -> float | None:
        """The allowed RMS of the error divided by that of the tensor; None if RMS is not bounded."""
        return _tighter(self.rms, self.rtol)

    @property
    def allowed_place(self) -> float | None:
        """Like `allowed_rms`, for the logits at one position of a target."""
        return _tighter(self.place, self.rtol)

    def tightened(self, atol: float | None, rtol: float | None) -> Tolerance:
        """Return this tolerance with the user's bounds, which apply where they are tighter.

        Raises `UnsupportedError` for a bound that is not positive, or an `rtol` that could not tighten anything.
        """
        most = self.rms or self.largest * LOOSEST
        for name, given in (("atol", atol), ("rtol", rtol)):
            if given is not None and not given > 0:
                raise UnsupportedError(f"{name} must be positive, got {name}={given:g}")
        if rtol is not None and not rtol <= most * (1 + 1e-9):
            where = f"{self.precision} on {self.provider}"
            fix = "an export that needs more is broken, or needs another precision"
            why = f"the most for {where} ({self.reason})"
            raise UnsupportedError(f"rtol={rtol:g} allows more than {most:g}, {why}; {fix}")
        return dataclasses.replace(self, atol=atol, rtol=rtol)

    def to_dict(self) -> dict[str, object]:
        """Return the bounds that apply and their reason, as a report records them."""
        kept = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if math.isinf(self.largest):
            del kept["largest"]
        return kept


def _tighter(limit: float | None, given: float | None) -> float | None:
    return limit if limit is None or given is None else min(limit, given)


FP32 = "rounding in another order: 2e-6, or 8 times what PyTorch itself is off by in fp32, in that very tensor"
FP16 = "11 bits of significand: 4e-3, or 4 times what PyTorch itself is off by in fp16, in that very tensor"
BF16 = "8 bits of significand: 3e-2, or 4 times what PyTorch itself is off by in bf16, in that very tensor"
INT8 = "in whole runs: in them roundings of activations add up; each product, and what lies between, is held as in fp32"
LOOSEST = 50.0  # times `largest` is the maximum --rtol: PyTorch's own error counts, too
FP32_LIMITS = {"largest": 2e-6, "own": 8.0, "noise": 1e-4, "rounding": 32.0, "points": 0.1}
FP16_LIMITS = {"largest": 4e-3, "own": 4.0, "noise": 2e-2, "rounding": 4.0, "points": 0.3}
BF16_LIMITS = {"largest": 3e-2, "own": 4.0, "noise": 2e-2, "rounding": 4.0, "points": 0.5}
FEW_BITS = {"largest": math.inf, "own": 3.0, "noise": 1e-2, "rounding": 3.0, "rms": 1.5e-1, "place": 5e-1}
TABLE = (
    Tolerance("fp32", "cpu", reason=FP32, **FP32_LIMITS),
    Tolerance("fp32", "cuda", reason="as on the CPU, since TF32 is off: its 10 bits would need 1e-3", **FP32_LIMITS),
    Tolerance(
        "fp32",
        ANY,
        reason="fp32 means fp32; one that computes in TF32 or bf16 by itself must not pass",
        **FP32_LIMITS,
    ),
    Tolerance("fp16", "cpu", reason=FP16, **FP16_LIMITS),
    Tolerance("fp16", ANY, reason="as on the CPU: fp16 is rounded alike, and sums in fp32 are finer", **FP16_LIMITS),
    Tolerance("bf16", ANY, reason=BF16, **BF16_LIMITS),
    Tolerance("int8", ANY, reason=INT8, points=0.5, **FEW_BITS),
    Tolerance("int4", ANY, reason=f"{INT8}, as in int8", points=1.0, **FEW_BITS),
)


FINEST_FIRST = ("fp32", "fp16", "bf16", "int8", "int4")


def coarser(one: str, other: str) -> str:
    """Return the precision that rounds more: a bundle's weights stay rounded whatever a runtime computes in."""
    return max(one, other, key=FINEST_FIRST.index)


def tolerance_of(
    precision: str,
    provider: str = "cpu",
    atol: float | None = None,
    rtol: float | None = None,
    held_in: str | None = None,
) -> Tolerance:
    """Return the tolerance of a precision and provider, tightened by `atol` and `rtol`.

    `points` limits how much worse the error rate may be than with the checkpoint's weights. It is the larger value of
    `precision`, which the runtime computes in, and `held_in`, the precision of the bundle's weights.
    """
    lines = [each for each in TABLE if each.precision == precision and each.provider in (provider, ANY)]
    points = max(each.points for each in TABLE if each.precision in (precision, held_in))
    return dataclasses.replace(lines[0], provider=provider, points=points).tightened(atol, rtol)
