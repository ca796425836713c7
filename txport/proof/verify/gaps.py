"""Distances of a runtime's outputs from the golden ones, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from txport.bundles.manifest import Manifest
from txport.errors import brief
from txport.proof.masks import ROOM, cut_off
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.verify.golden import SUMS, TINY, GoldenLogits, fold
from txport.runtimes.base import Floats
from txport.system.arrays import Array
from txport.system.machine import is_out_of_memory

ALLOWED = "the difference that is allowed"
ALONE = 1e-5  # change of a logit that the rest of the batch may cause, over the largest logit


@dataclass(frozen=True)
class Check:
    """The result of one check: the verdict "pass", "fail" or "not run", and the findings or the reason.

    `values` are the expected and actual values by name, for `verify --save`.
    """

    name: str
    verdict: str
    detail: str
    values: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)


def check_of(name: str, problems: list[str], seen: str) -> Check:
    """Return a failed check with the problems, or if there are none, a passed check with `seen`."""
    return Check(name, "fail" if problems else "pass", "; ".join(problems) or seen)


def in_turn(checks: Mapping[str, Callable[[], Check]]) -> Iterator[Check]:
    """Run one check after the other; the first one that raises an error fails and is the last one."""
    for name, check in checks.items():
        try:
            yield check()
        except Exception as error:  # each runtime has its own errors
            if is_out_of_memory(error):
                raise
            yield Check(name, "fail", f"it does not run: {brief(error)}")
            return


def limit_of(stored: GoldenLogits, manifest: Manifest) -> float:
    """Return the change of a logit that the rest of the batch may cause."""
    return ALONE * stored.largest if manifest.quantization else max(ALONE * stored.largest, stored.noise)


def differences(ones: Floats, others: Floats, stored: GoldenLogits) -> Floats:
    """Return the absolute differences of logits (T, V), with masks cut off."""
    bound = ROOM * stored.largest
    found: Floats = np.abs(cut_off(ones, bound) - cut_off(others, bound))
    return found


def gap_of(stored: GoldenLogits, values: Floats, precision: str, *, hidden: bool = False) -> tuple[float, str]:
    """Return the largest difference of one target's logits from PyTorch's, in units of the allowed one.

    Also return its position, in words. In int8 and int4, compare the RMS of the error with that of all logits. The
    largest numbers of a `hidden` state have larger errors than the others, so their error is compared with their own
    RMS. The difference is NaN if a logit is NaN.
    """
    values = cut_off(values, ROOM * stored.largest)
    count = stored.ids.shape[1]
    expected, actual = compared(stored, values)
    error = np.abs(actual - expected)
    step, place = np.unravel_index(int(np.argmax(np.nan_to_num(error, nan=np.inf))), error.shape)
    what = _place(stored, values, int(step), int(place))
    where = f"step {step}: {what} is {actual[step, place]:.6g}, expected {expected[step, place]:.6g}"
    tolerance = tolerance_of(precision)
    if tolerance.rms is not None:
        pairs = [(error[:, part], expected[:, part]) for part in (slice(count), slice(count, None))]
        sizes = [max(stored.rms, _rms(right) if hidden else 0.0, TINY) for _, right in pairs]
        shares = [_rms(errors) / size for (errors, _), size in zip(pairs, sizes, strict=True)]
        return float(np.max(shares) / tolerance.rms), where
    return float(error[step, place] / max(stored.noise, TINY)), where


def compared(stored: GoldenLogits, values: Floats) -> tuple[Array, Array]:
    """Return the expected and actual numbers of one target, (T, K + F): the K likeliest tokens' logits, then F sums."""
    best = np.take_along_axis(values, stored.ids, axis=1)
    expected = np.column_stack([stored.values, stored.sums]).astype(np.float64)
    return expected, np.column_stack([best, fold(values)]).astype(np.float64)


def values_of(name: str, stored: GoldenLogits, values: Floats) -> dict[str, Array]:
    """Return the tokens and the numbers that are compared, named after `name`, for `verify --save`."""
    expected, actual = compared(stored, values)
    return {f"{name}.token_ids": stored.ids, f"{name}.expected": expected, f"{name}.actual": actual}


def _place(stored: GoldenLogits, values: Floats, step: int, place: int) -> str:
    count = stored.ids.shape[1]
    size = values.shape[1]
    if place < count:
        return f"the logit of token {stored.ids[step, place]}"
    if size <= SUMS:
        return f"the logit of token {place - count}"
    return f"the sum of the logits of tokens {place - count} + n x {SUMS}"


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
