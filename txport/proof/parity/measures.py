"""Measures of the difference between two tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.proof.masks import bound_of, cut_off
from txport.system.arrays import Array
from txport.system.terminal import percent
from txport.targets.ports import IDS, LOG_PROBS, LOGITS

# kinds of comparison
WEIGHTS, GRAPH, FORCED, ONE_PASS, INFERRED = "weights", "graph", "teacher-forced", "one pass", "whole texts"
RUNS = (FORCED, ONE_PASS, INFERRED)  # kinds that compare whole runs
WHOLE = -1  # the step of a comparison over all positions of the targets
TOP = 10
WORDS = {LOG_PROBS: "log-probs of the best tokens", IDS: "log-probs of the tokens that the graph chose"}
FORMAT = 1  # version of the format of a report as JSON


@dataclass(frozen=True)
class Comparison:
    """The difference between one tensor of one case and its reference.

    `index` is the position of the largest difference. `step` is the call of a graph, or in teacher forcing the position
    in the target.
    """

    case: str
    runtime: str
    step: int
    tensor: str
    max_abs: float
    allowed: float
    index: tuple[int, ...]
    expected: float
    actual: float
    relative: float = 0.0  # RMS of the error / RMS of the tensor, in general; see `compare`
    allowed_relative: float | None = None  # None if only the largest difference is bounded
    own_relative: float | None = None  # `relative` of PyTorch itself in the precision, if it was computed
    kind: str = GRAPH
    mean_abs: float = 0.0
    of_largest: float = 0.0  # the largest difference / the tensor's largest absolute value
    cosine: float = 1.0
    sqnr: float = np.inf  # signal-to-quantisation-noise ratio, in dB
    ulps: int | None = None  # the largest difference in steps between fp32 numbers; None for other types
    argmax: float | None = None  # share of rows with the same most probable token; None if not logits
    top10: float | None = None  # share of the ten most probable tokens that are the same
    note: str = ""  # the fault, if it is not a difference of values

    @property
    def badness(self) -> float:
        """The error divided by the allowed error; NaN if the error is NaN."""
        worst = self.max_abs / (self.allowed or 1e-30) if self.max_abs else 0.0
        if self.allowed_relative is None:
            return worst
        return float(np.maximum(worst, self.relative / self.allowed_relative))  # NaN if either is

    @property
    def passed(self) -> bool:
        """Whether the error is allowed; NaN never is."""
        return self.badness <= 1

    @property
    def words(self) -> str:
        """The tensor by what it is: the port's name, or words for the results of a selection of tokens."""
        return WORDS.get(self.tensor, self.tensor)

    @property
    def place(self) -> str:
        """The call of a graph, or the position in a target, in words."""
        if self.kind == INFERRED:
            return INFERRED
        if self.kind not in (FORCED, ONE_PASS):
            return f"step {self.step}"
        where = "whole targets" if self.step == WHOLE else f"target position {self.step}"
        return f"{where}, {ONE_PASS}" if self.kind == ONE_PASS else where

    def describe(self) -> str:
        """Describe the case, the position and both values in one line."""
        where = f"{self.runtime}, case {self.case}, {self.place}: "
        if self.note:
            return f"{where}{self.tensor} {self.note}"
        if (
            self.allowed_relative is not None
            and not self.relative / self.allowed_relative < self.max_abs / self.allowed
        ):
            error = f"{percent(self.relative, 'its size')}, allowed are {percent(self.allowed_relative)}"
            return f"{where}{self.words} has an error of {error}"
        values = f"is {self.actual:.6g}, expected {self.expected:.6g} (difference {self.max_abs:.3g})"
        return f"{where}{self.words}{list(self.index)} {values}"


def compare(
    case: str,
    runtime: str,
    step: int,
    tensor: str,
    expected: Array,
    actual: Array,
    tolerance: float,
    *,
    rms: float | None = None,
    over: NDArray[np.bool_] | None = None,
    least: float = 0.0,
    by_row: bool = False,
    kind: str = GRAPH,
) -> Comparison:
    """Compare two tensors; different shapes count as an infinite difference.

    `tolerance` bounds the largest absolute difference. `rms` bounds `relative`, which is norm(error) / norm(expected).
    With `by_row`, the error of each row (the last axis) counts as that of the worst row. With `over`, the divisor is
    the norm of these elements only. `least` is the minimum RMS of the divisor. Masks among logits are cut off.
    """
    about: dict[str, Any] = {"case": case, "runtime": runtime, "step": step, "kind": kind, "allowed_relative": rms}
    if expected.shape != actual.shape:
        note = f"has shape {actual.shape}, expected {expected.shape}"
        return wrong(tensor, note, sizes=(expected.size, actual.size), **about)
    if expected.size == 0:
        return Comparison(**about, tensor=tensor, max_abs=0.0, allowed=tolerance, index=(), expected=0.0, actual=0.0)
    if tensor == LOGITS:
        bound = bound_of(expected)
        expected = cut_off(expected, bound)
        actual = cut_off(actual, bound)
    if np.array_equal(expected, actual):
        return _equal(expected, actual, tolerance, {**about, "tensor": tensor})
    steps = ulps(expected, actual)  # before there are three copies in float64
    wanted = expected.astype(np.float64)
    found = actual.astype(np.float64)
    difference = np.abs(wanted - found)
    index = np.unravel_index(int(np.argmax(difference)), expected.shape)  # NaN is the largest
    return Comparison(
        **about,
        tensor=tensor,
        max_abs=float(difference[index]),
        allowed=tolerance,
        index=tuple(int(i) for i in index),
        expected=float(expected[index]),
        actual=float(actual[index]),
        **distances(wanted, found, difference, over, least, by_row),
        ulps=steps,
        **(agreement(expected, actual) if tensor == LOGITS else {}),
    )


def _equal(expected: Array, actual: Array, tolerance: float, about: dict[str, Any]) -> Comparison:
    """Return the result of `compare` for two equal tensors without NaN: there is nothing to compute."""
    first = float(expected.flat[0])
    agrees = 1.0 if about["tensor"] == LOGITS else None
    ranked = 0 if expected.dtype == actual.dtype == np.float32 and np.isfinite(expected).all() else None
    return Comparison(
        **about,
        max_abs=0.0,
        allowed=tolerance,
        index=(0,) * expected.ndim,
        expected=first,
        actual=first,
        ulps=ranked,
        argmax=agrees,
        top10=agrees,
    )


def badness(found: Comparison) -> float:
    """Return the badness as a sort key: NaN is worse than any number."""
    return float(np.nan_to_num(found.badness, nan=np.inf))


def wrong(tensor: str, note: str, sizes: tuple[float, float] = (0.0, 0.0), **about: Any) -> Comparison:
    """Return a comparison that fails for the reason in `note`; `sizes` are the expected and the actual value."""
    values: dict[str, Any] = {
        "max_abs": np.inf,
        "allowed": 0.0,
        "index": (),
        "expected": float(sizes[0]),
        "actual": float(sizes[1]),
    }
    return Comparison(tensor=tensor, note=note, sqnr=-np.inf, **values, **about)


@np.errstate(all="ignore")  # a wrong model may output infinity
def distances(
    expected: Array,
    actual: Array,
    difference: Array,
    over: Array | None = None,
    least: float = 0.0,
    by_row: bool = False,
) -> dict[str, Any]:
    """Return the measures over a whole tensor, in float64.

    `difference` is the absolute difference; `over`, `least` and `by_row` are those of `compare`.
    """
    flat = expected.ravel()
    other = actual.ravel()
    error = difference.ravel()
    signal = _dot(flat, flat)
    noise = _dot(error, error)
    norm = _dot(other, other)
    size = signal if over is None else _dot(expected[over], expected[over])
    counted = len(error) * float(np.square(difference).mean(axis=-1).max()) if by_row else noise
    return {
        "relative": float(np.sqrt(counted) / max(np.sqrt(size), least * np.sqrt(len(flat)), 1e-30)),
        "mean_abs": float(error.mean()),
        "of_largest": float(error.max() / max(np.abs(flat).max(), 1e-30)),
        "cosine": float(_dot(flat, other) / np.sqrt(signal * norm)) if signal and norm else float(signal == norm),
        "sqnr": float(10 * np.log10(signal / noise)) if signal and noise else (np.inf if noise == 0 else -np.inf),
    }


def _dot(first: Array, second: Array) -> float:
    return float(np.einsum("i,i->", first, second))  # BLAS would wake its threads for each tensor


@np.errstate(all="ignore")
def ulps(expected: Array, actual: Array) -> int | None:
    """Return the largest difference in steps from one fp32 number to the next.

    None for other types, and if any value is NaN or infinite.
    """
    if not expected.dtype == actual.dtype == np.float32 or not (np.isfinite(expected) & np.isfinite(actual)).all():
        return None
    return int(np.abs(_ranks(expected) - _ranks(actual)).max(initial=0))


def _ranks(values: Array) -> NDArray[np.int64]:
    """Return the rank of each number among all fp32 numbers; both zeros have rank 0."""
    bits = np.ascontiguousarray(values).view(np.int32)
    return np.where(bits < 0, np.int32(-(1 << 31)) - bits, bits).astype(np.int64)


def agreement(expected: Array, actual: Array) -> dict[str, Any]:
    """Return the shares of logits (..., V) that agree: rows with the same best token, and tokens of the ten best."""
    wanted, found = (array.reshape(-1, array.shape[-1]) for array in (expected, actual))
    same = [_best(array) for array in (wanted, found)]
    shared = (same[0] & same[1]).sum(axis=1) / same[0].sum(axis=1)
    return {"argmax": float((wanted.argmax(axis=1) == found.argmax(axis=1)).mean()), "top10": float(shared.mean())}


def _best(logits: Array) -> NDArray[np.bool_]:
    """Return whether each token is among the ten best of its row: bool (R, V)."""
    chosen = np.zeros(logits.shape, bool)
    count = min(TOP, logits.shape[1])
    np.put_along_axis(chosen, np.argpartition(-logits, count - 1, axis=1)[:, :count], True, axis=1)
    return chosen


def finite(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values as JSON values: NaN and infinity become strings, because JSON has no numbers for them."""
    return {name: number(value) for name, value in values.items()}


def number(value: object) -> object:
    """Return a value as a JSON value; NaN and infinity become strings."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def to_dict(each: Comparison) -> dict[str, object]:
    """Return a comparison as a report records it, without its case and runtime, under which the report puts it."""
    kept = {name: value for name, value in dataclasses.asdict(each).items() if name not in ("case", "runtime", "note")}
    return finite(
        {**kept, **({"note": each.note} if each.note else {}), "badness": each.badness, "passed": each.passed}
    )
