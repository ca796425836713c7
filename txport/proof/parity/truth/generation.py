"""Reference results of a model that generates: the logits of whole targets, and the tokens that search finds.

In teacher forcing, a runtime is given each token of a target and its logits are compared before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.proof.masks import largest_of
from txport.proof.metrics import Metric
from txport.proof.parity.calls import no_crash
from txport.proof.parity.cases import Case, brief
from txport.proof.parity.exact import Exact
from txport.proof.parity.measures import FORCED, ONE_PASS, WHOLE, Comparison, compare
from txport.proof.parity.quality import Texts, compare_quality, generated
from txport.proof.parity.tokens import TokenComparison, compare_search, search_together
from txport.proof.parity.tolerances import Tolerance
from txport.proof.reports.report import Report
from txport.runtimes.base import Floats, GraphRuntime, Ints, Runtime
from txport.runtimes.pytorch import TorchRuntime
from txport.runtimes.single import SingleRuntime
from txport.search.options import Found
from txport.search.scoring import has_one_pass, logits, teacher_forced_logits
from txport.search.single import built_in
from txport.targets.ports import LOGITS


class GeneratorTruth:
    """PyTorch's results of all cases in float64, computed once for all runtimes.

    Cases use the weights of the bundle if it is quantised, so that only the computation differs. Texts with targets use
    the checkpoint's weights, to compare quality with the original model.
    """

    def __init__(
        self, bundle: Bundle, checkpoint: Checkpoint, exact: Exact, cases: list[Case], texts: Texts, metric: Metric
    ) -> None:
        self._bundle = bundle
        self._texts = texts
        self._metric = metric
        self._exact = exact
        runtime = TorchRuntime(exact.model)
        with exact.reproduced():
            self._found = search_together(cases, runtime, checkpoint.facts)
        self.cases = [replace(case, targets=case.targets or self._greedy_targets(case)) for case in cases]
        self.pytorch = self._compare_pytorch(checkpoint)
        self._rules = built_in(bundle.manifest.generation) if bundle.manifest.single else {}
        self._at_once = [case for case in cases if self._has_room(case, checkpoint.facts)]
        self._found_at_once = self._found
        if self._rules:
            self._found_at_once = search_together(self._at_once, runtime, checkpoint.facts, self._rules)
        self._outputs = generated(bundle, TorchRuntime(Exact.of(checkpoint.model).model), texts) if texts else []

    def _compare_pytorch(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Return the error of PyTorch in fp32, with the checkpoint's weights, over the targets of brief cases.

        Nothing is returned for a quantised bundle, whose cost against fp32 is measured: it takes as long as a case.
        """
        if self._bundle.manifest.quantization:
            return {}
        exact = self._exact if self._exact.own.model is checkpoint.model else Exact.of(checkpoint.model)
        few = brief(self.cases)[: 1 if checkpoint.read is not None else None]  # each reads all weights again
        rows = 1 if isinstance(checkpoint.facts.reads, Features) else None  # each takes long
        pairs = [(case.sources[:rows], case.targets[:rows]) for case in few]
        return {
            "worst_logit_difference": max(exact.own_error(*pair) for pair in pairs),
            "largest_logit": max(largest_of(each) for pair in pairs for each in exact.logits(*pair)),
        }

    def _greedy_targets(self, case: Case) -> tuple[tuple[int, ...], ...]:
        greedy: list[Found] = self._found[case.name].get("greedy", [])
        return tuple(found.tokens for found in greedy)

    def compare(self, report: Report, label: str, runtime: GraphRuntime, tolerance: Tolerance) -> None:
        """See `Truth.compare`."""
        for case in (case for case in self.cases if case.targets):
            with no_crash(f"{label}, case {case.name}: a search"):
                forced = list(compare_forced(case, label, runtime, self._exact, tolerance))
                if has_one_pass(runtime, self._exact.model.facts):
                    forced += compare_forced(case, label, runtime, self._exact, tolerance, ONE_PASS)
                report.tensors.extend(forced)
                may_tie = all(each.passed for each in forced)
                report.tokens.extend(self._compare_search(case, label, runtime, tolerance, may_tie=may_tie))
        if self._texts:
            with no_crash(f"{label}, texts: a search"):
                outputs = generated(self._bundle, runtime, self._texts)
            quality = compare_quality(label, outputs, self._outputs, self._texts, self._metric, tolerance)
            report.quality.append(quality)

    def compare_at_once(self, report: Report, label: str, runtime: SingleRuntime[object], tolerance: Tolerance) -> None:
        """Add the comparison of the single graph, which contains search and its rules, to a report."""
        for case in self._at_once:
            with no_crash(f"{label}, case {case.name}: the single graph"):
                found = self._found_at_once[case.name]
                report.tokens.extend(compare_search(case, label, runtime, found, self._exact, tolerance, self._rules))

    def _has_room(self, case: Case, facts: Facts) -> bool:
        """Return whether each prompt leaves room for the minimum number of new tokens."""
        if not facts.is_causal:
            return True
        longest = max(map(len, case.sources)) + int(self._rules.get("min_new_tokens", 0))
        return longest <= facts.writes.longest

    def _compare_search(
        self, case: Case, label: str, runtime: Runtime, tolerance: Tolerance, *, may_tie: bool
    ) -> Iterator[TokenComparison]:
        found = self._found[case.name]
        return compare_search(case, label, runtime, found, self._exact, tolerance, may_tie=may_tie)


Hold = Callable[..., Comparison]


def compare_forced(
    case: Case, label: str, runtime: Runtime, exact: Exact, tolerance: Tolerance, kind: str = FORCED
) -> Iterator[Comparison]:
    """Compare the logits at each position of the targets, over all rows that are long enough.

    The runtime computes them by steps, with its own cache, or in one pass if `kind` is `ONE_PASS`. If
    the tolerance bounds the RMS error, it bounds that of whole targets: at one position, few numbers carry all earlier
    errors. The worst row of a position may then have a larger error, but a smaller one than a fault causes, whose error
    is as large as the logits.
    """
    expected = exact.logits(case.sources, case.targets)
    pairs = []
    whole = cache(partial(_whole, exact, case))
    facts = exact.model.facts
    found = _passed(runtime, case, facts) if kind == ONE_PASS else _stepped(runtime, case, facts)
    for place, (rows, actual) in enumerate(found):
        wanted = np.stack([expected[row][place] for row in rows])
        largest = largest_of(wanted)
        allowed = tolerance.allowed(largest)
        rms = tolerance.allowed_place
        about = (case.name, label, place, LOGITS, wanted)
        hold = partial(compare, *about, tolerance=allowed, rms=rms, by_row=True, kind=kind)
        own = whole if tolerance.rms is None else partial(_at, hold, exact, case, rows, place)
        yield tolerance.judge(hold(actual=actual), largest, own)
        if tolerance.rms is not None:
            pairs.append((wanted, actual.copy()))
    if tolerance.rms is not None:
        wanted, actual = (np.concatenate(each) for each in zip(*pairs, strict=True))
        largest = largest_of(wanted)
        allowed = tolerance.allowed(largest)
        rms = tolerance.allowed_rms
        of_all = compare(case.name, label, WHOLE, LOGITS, wanted, actual, allowed, rms=rms, kind=kind)
        yield tolerance.judge(of_all, largest, whole)


def _stepped(runtime: Runtime, case: Case, facts: Facts) -> Iterator[tuple[Ints, Floats]]:
    """Yield for each position the targets that have one there (R,), and the logits (R, V), by steps."""
    for rows, _, values in teacher_forced_logits(runtime, case.sources, case.targets, facts):
        yield rows, values


def _passed(runtime: Runtime, case: Case, facts: Facts) -> Iterator[tuple[Ints, Floats]]:
    """Yield the same as `_stepped`, computed in one pass."""
    found = logits(runtime, case.sources, case.targets, facts)
    for place in range(max(map(len, found))):
        rows = np.array([row for row, values in enumerate(found) if place < len(values)])
        yield rows, np.stack([found[row][place] for row in rows])


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
