"""One run of a graph against PyTorch's, output by output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.models.ports import IDS, LOG_PROBS, LOGITS
from txport.proof.cases import Case
from txport.proof.measures import Comparison, compare, wrong
from txport.proof.tolerances import Tolerance
from txport.proof.walks import Call, Reference

Array = NDArray[Any]


def compare_call(
    case: Case, label: str, call: Call, actual: Mapping[str, Array], reference: Reference, tolerance: Tolerance
) -> Iterator[Comparison]:
    """Every output, and, where the graph chooses tokens, whether they have the scores that it says.

    In a cache, the error counts over what is new: what lay there before is copied, and would hide it. That of the best
    tokens' scores, which may all be nearly 0, counts over the logits that they come from.
    """
    logits = [each for each in (call.expected.get(LOGITS), call.choices) if each is not None]
    size, top = max(map(_rms, logits), default=0.0), max(map(_largest, logits), default=0.0)
    for tensor, values in call.expected.items():
        is_score, new = tensor == LOG_PROBS, call.new_places(tensor)
        largest = top if is_score else _largest(values if new is None else values[new])
        where, rms = (case.name, label, call.step, tensor), tolerance.allowed_rms
        least = size if is_score else 0.0
        found = compare(*where, values, actual[tensor], tolerance.allowed(largest), rms=rms, over=new, least=least)
        yield tolerance.judge(found, largest, partial(_own_error, reference, call, tensor))
    if call.choices is not None:
        found = _compare_choice(case, label, call, call.choices, size, tolerance.allowed(top), actual, tolerance)
        yield tolerance.judge(found, top, partial(_own_error, reference, call, IDS))


def _own_error(reference: Reference, call: Call, tensor: str) -> float:
    """That of the scores of tokens is twice that of the logits: of their own, and of those that they are over."""
    if tensor not in (LOG_PROBS, IDS):
        return reference.own_error(call, tensor)
    return 2 * reference.own_error(call, LOGITS)


def _compare_choice(
    case: Case,
    label: str,
    call: Call,
    choices: Array,
    size: float,
    allowed: float,
    actual: Mapping[str, Array],
    tolerance: Tolerance,
) -> Comparison:
    ids, values = actual[IDS], actual[LOG_PROBS]
    if not ((ids >= 0) & (ids < choices.shape[1])).all():
        return wrong(IDS, "are no tokens", case=case.name, runtime=label, step=call.step)
    expected = np.take_along_axis(choices, ids, axis=1)
    return compare(case.name, label, call.step, IDS, expected, values, allowed, rms=tolerance.allowed_rms, least=size)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))
