"""Teacher forcing: compare the logits before each token of a target, step by step on a runtime, with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.bundles.ports import LOGITS
from txport.proof.masks import largest_of
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact
from txport.proof.parity.measures import FORCED, WHOLE, Comparison, compare
from txport.proof.parity.tolerances import Tolerance
from txport.runtimes.base import Ints, Runtime
from txport.search.scoring import teacher_forced_logits

Array = NDArray[Any]
Hold = Callable[..., Comparison]


def compare_forced(
    case: Case, label: str, runtime: Runtime, exact: Exact, tolerance: Tolerance
) -> Iterator[Comparison]:
    """Compare the logits at each position of the targets, over all rows that are long enough, with the runtime's cache.

    If the tolerance bounds the RMS error, it bounds that of whole targets: at one position, few numbers carry all
    earlier errors. The worst row of a position may then have a larger error, but a smaller one than a fault causes,
    whose error is as large as the logits.
    """
    expected = exact.logits(case.sources, case.targets)
    pairs = []
    whole = cache(partial(_whole, exact, case))
    for place, (rows, _, actual) in enumerate(
        teacher_forced_logits(runtime, case.sources, case.targets, exact.model.facts)
    ):
        wanted = np.stack([expected[row][place] for row in rows])
        largest = largest_of(wanted)
        allowed = tolerance.allowed(largest)
        rms = tolerance.allowed_place
        about = (case.name, label, place, LOGITS, wanted)
        hold = partial(compare, *about, tolerance=allowed, rms=rms, by_row=True, kind=FORCED)
        own = whole if tolerance.rms is None else partial(_at, hold, exact, case, rows, place)
        yield tolerance.judge(hold(actual=actual), largest, own)
        if tolerance.rms is not None:
            pairs.append((wanted, actual.copy()))
    if tolerance.rms is not None:
        wanted, actual = (np.concatenate(each) for each in zip(*pairs, strict=True))
        largest = largest_of(wanted)
        allowed = tolerance.allowed(largest)
        rms = tolerance.allowed_rms
        found = compare(case.name, label, WHOLE, LOGITS, wanted, actual, allowed, rms=rms, kind=FORCED)
        yield tolerance.judge(found, largest, whole)


def _at(hold: Hold, exact: Exact, case: Case, rows: Ints, place: int, draw: int) -> Comparison:
    """Compare PyTorch itself in the precision, at one position of some targets."""
    own = exact.own_logits(case.sources, case.targets, draw)
    return hold(actual=np.stack([own[row][place] for row in rows]))


def _whole(exact: Exact, case: Case, draw: int) -> Comparison:
    """Compare PyTorch itself in the precision over whole targets: at one position, its error is chance."""
    right, found = (
        np.concatenate(each)
        for each in (exact.logits(case.sources, case.targets), exact.own_logits(case.sources, case.targets, draw))
    )
    return compare(case.name, "torch", WHOLE, LOGITS, right, found, 0.0, kind=FORCED)
