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
    logits = call.expected.get(LOGITS, call.choices)
    size = 0.0 if logits is None else float(np.sqrt(np.square(logits, dtype=np.float64).mean()))
    for tensor, values in call.expected.items():
        allowed, rms = tolerance.allowed(values), tolerance.allowed_rms
        where, least = (case.name, label, call.step, tensor), size if tensor == LOG_PROBS else 0.0
        found = compare(*where, values, actual[tensor], allowed, rms=rms, over=call.new_places(tensor), least=least)
        yield tolerance.judge(found, partial(reference.own_error, call, tensor))
    if call.choices is not None:
        yield _compare_choice(case, label, call, call.choices, size, actual, tolerance)


def _compare_choice(
    case: Case, label: str, call: Call, choices: Array, size: float, actual: Mapping[str, Array], tolerance: Tolerance
) -> Comparison:
    ids, values = actual[IDS], actual[LOG_PROBS]
    if not ((ids >= 0) & (ids < choices.shape[1])).all():
        return wrong(IDS, "are no tokens", case=case.name, runtime=label, step=call.step)
    expected = np.take_along_axis(choices, ids, axis=1)
    limits = tolerance.allowed(expected), tolerance.allowed_rms
    return compare(case.name, label, call.step, IDS, expected, values, limits[0], rms=limits[1], least=size)
