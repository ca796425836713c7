"""Teacher forcing: the logits before every token of a given target, step by step on a runtime, at once in PyTorch."""

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
    """Logits at each place of the case's targets, of all rows that are so long, the cache being the runtime's own.

    Where the RMS counts, it does over whole targets: at one place few numbers stand on all the errors before it. A
    place may then be worse, in its worst row, but not so much as where something is wrong, which is off by the size of
    the logits.
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
    """PyTorch itself in the precision, at one place of some targets."""
    own = exact.own_logits(case.sources, case.targets, draw)
    return hold(actual=np.stack([own[row][place] for row in rows]))


def _whole(exact: Exact, case: Case, draw: int) -> Comparison:
    """PyTorch itself in the precision, over whole targets: at one place, how far it is off is chance."""
    right, found = (
        np.concatenate(each)
        for each in (exact.logits(case.sources, case.targets), exact.own_logits(case.sources, case.targets, draw))
    )
    return compare(case.name, "torch", WHOLE, LOGITS, right, found, 0.0, kind=FORCED)
