"""Compare the tokens that search finds on a runtime with those in PyTorch; a difference may be a near-tie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from txport.models.facts import Facts
from txport.proof.masks import largest_of
from txport.proof.parity.cases import MANY, NO_RULES, Case, Rules, most_rows, options_of
from txport.proof.parity.exact import Exact
from txport.proof.parity.noise import Noisy, Remembering
from txport.proof.parity.tolerances import DRAWS, Tolerance
from txport.runtimes.base import Doubles, Runtime, log_softmax
from txport.runtimes.inputs import Source
from txport.runtimes.pytorch import TorchRuntime
from txport.runtimes.single import SingleRuntime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.search.single import generate_at_once
from txport.system.arrays import Array

BEAMS = 4
SEARCHES = {"greedy": 1, f"beam {BEAMS}": BEAMS}  # name -> beams
LONG_SOURCE = 96  # tokens; longer sources are not searched together with shorter ones
LAST_BIT = float(np.finfo(np.float32).eps)
NOISY_RUNS = 16
TINY = 1e-30
SHARES = (1.0, 0.1, 0.01)  # of the noise: its full size hides the effect of a little


@dataclass(frozen=True)
class TokenComparison:
    """The tokens of one kind of search in one case: the number of equal rows and near-ties, and the first wrong row.

    Different rows after the wrong one are not examined and do not count as near-ties. `margin` is the gap in PyTorch's
    scores of the near-tie that comes closest to its limit, `noise` is the allowed change of a logit there.
    """

    case: str
    runtime: str
    search: str
    rows: int
    equal: int
    near_ties: int
    wrong: dict[str, Any] | None = None
    margin: float = 0.0
    noise: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether each row is equal to PyTorch's or a near-tie."""
        return self.equal + self.near_ties == self.rows

    def describe(self) -> str:
        """Describe the wrong row in one line."""
        return f"{self.runtime}, case {self.case}: {self.search} tokens differ: {self.wrong}"


def search_all(case: Case, runtime: Runtime, facts: Facts, rules: Rules = NO_RULES) -> dict[str, list[Found]]:
    """Return the best target of each source, by kind of search; empty if the case has no search.

    `rules` are further options; those that a kind of search does not support are left out.
    """
    if not case.search_tokens:
        return {}
    options = {name: options_of(facts, beams, case.search_tokens, rules) for name, beams in SEARCHES.items()}
    return {name: [each[0] for each in _find(runtime, case.sources, facts, options[name])] for name in SEARCHES}


def _find(runtime: Runtime, sources: Sequence[Source], facts: Facts, options: SearchOptions) -> list[list[Found]]:
    if isinstance(runtime, SingleRuntime):
        return generate_at_once(runtime, sources, options)
    return generate(runtime, sources, facts, options)


def search_together(
    cases: Sequence[Case], runtime: Runtime, facts: Facts, rules: Rules = NO_RULES
) -> dict[str, dict[str, list[Found]]]:
    """Like `search_all` for several cases at once: case -> kind of search -> best targets.

    The runtime must compute in float64, where no row depends on the others. Features and long sources are searched case
    by case, because all rows are padded to the longest one.
    """
    runtime = Remembering(runtime)  # greedy search and beams read the same sources
    together: dict[str, dict[str, list[Found]]] = {case.name: {} for case in cases}
    apart = {case.name for case in cases if most_rows(facts) < MANY or max(map(len, case.sources)) > LONG_SOURCE}
    alike = {case.name: case.name if case.name in apart else case.search_tokens for case in cases}
    for kind in dict.fromkeys(alike[case.name] for case in cases if case.search_tokens):
        chosen = [case for case in cases if alike[case.name] == kind]
        every = replace(chosen[0], sources=[source for case in chosen for source in case.sources])
        for name, found in search_all(every, runtime, facts, rules).items():
            rest = iter(found)
            for case in chosen:
                together[case.name][name] = list(islice(rest, len(case.sources)))
    return together


def compare_search(
    case: Case,
    label: str,
    runtime: Runtime,
    expected: Mapping[str, Sequence[Found]],
    exact: Exact,
    tolerance: Tolerance,
    rules: Rules = NO_RULES,
    *,
    may_tie: bool = True,
) -> Iterator[TokenComparison]:
    """Compare greedy and beam tokens row by row with PyTorch's (`expected`); a different row passes as a near-tie only.

    If the logits are wrong, noise explains nothing. Without `may_tie`, all different rows fail, and the costly search
    for near-ties is skipped.
    """
    kind = "single " if isinstance(runtime, SingleRuntime) else ""
    for search, actual in search_all(case, runtime, exact.model.facts, rules).items():
        wanted = expected[search]
        ties = list[Tie]()
        wrong = None
        other = [row for row, (one, two) in enumerate(zip(wanted, actual, strict=True)) if one.tokens != two.tokens]
        for row in other:
            found = (exact, case.sources[row], wanted[row], actual[row], SEARCHES[search], tolerance, rules)
            tie = near_tie(*found) if may_tie else None
            if tie is None:
                wrong = {"row": row, "expected": wanted[row].tokens, "actual": actual[row].tokens}
                break
            ties.append(tie)
        closest = max(ties, key=lambda tie: tie.margin / max(tie.noise, TINY), default=Tie(0.0, 0.0))
        yield TokenComparison(
            case=case.name,
            runtime=label,
            search=f"{kind}{search}",
            rows=len(wanted),
            equal=len(wanted) - len(other),
            near_ties=len(ties),
            wrong=wrong,
            margin=closest.margin,
            noise=closest.noise,
        )


class Tie(NamedTuple):
    """The gap by which PyTorch prefers its own tokens, and the allowed change of a logit."""

    margin: float
    noise: float


def near_tie(
    exact: Exact,
    source: Source,
    expected: Found,
    actual: Found,
    beams: int,
    tolerance: Tolerance,
    rules: Rules = NO_RULES,
) -> Tie | None:
    """Return the gap and the noise if noise explains that the tokens differ from PyTorch's; None if it does not.

    Greedy search: the gap is that of the first two tokens that differ, and both logits may change by the noise. Later
    tokens do not count, because they follow different prefixes. Beam search: the gap is that of the mean log-probs,
    which rank the targets. As search may drop a beam at a tie, the actual tokens also pass if PyTorch itself finds them
    with noise on its logits. In int8 and int4, search may prune other beams: the actual tokens may then also be better
    than PyTorch's, or at least as good as others that it finds with noise or with the kernels' roundings.
    """
    sources = [source] * 2
    targets = [expected.tokens, actual.tokens]
    logits = exact.logits(sources, targets)
    scores = [token_log_probs(*pair) for pair in zip(logits, targets, strict=True)]
    largest = max(map(largest_of, logits))
    few_bits = tolerance.rms is not None
    if beams == 1:
        pairs = enumerate(zip(expected.tokens, actual.tokens, strict=False))
        first = next((at for at, (one, other) in pairs if one != other), None)
        margin = np.inf if first is None else abs(float(scores[0][first] - scores[1][first]))
    else:
        worse = float(scores[0].mean() - scores[1].mean())
        margin = max(worse, 0.0) if few_bits else abs(worse)
    # search adds log-probs in fp32; if logits are nearly 0, the last bit of log-probs exceeds the noise
    noise = LAST_BIT * max(float(np.abs(each).max()) for each in scores)
    for draw in range(DRAWS):  # the first draw is often enough
        noise = max(noise, tolerance.noise_of(largest, exact.own_error(sources, targets, draw)))
        if margin <= (2 * noise if beams == 1 else noise):
            return Tie(margin, noise)
    if beams == 1 and not rules:  # rules may select tokens by numbers other than the logits
        return None
    share = noise / max(largest, TINY)
    found = _found_in_noise(exact, source, expected, actual, beams, share, few_bits, rules)
    return Tie(margin if beams == 1 else abs(worse), noise) if found else None


def _found_in_noise(
    exact: Exact,
    source: Source,
    expected: Found,
    actual: Found,
    beams: int,
    noise: float,
    few_bits: bool,
    rules: Rules,
) -> bool:
    """Return whether search in PyTorch with noise on the logits finds the actual tokens.

    With `few_bits`, other tokens that are no better than the actual ones count, too. `noise` is relative to the largest
    logit.
    """
    facts = exact.model.facts
    own = score_of(exact, source, actual.tokens).mean()
    options = options_of(facts, beams, max(len(expected.tokens), len(actual.tokens)), rules)
    for targets in _searches_in_noise(exact, source, options, noise, few_bits):
        others = targets - {expected.tokens}
        if actual.tokens in others:
            return True
        if few_bits and any(score_of(exact, source, tokens).mean() <= own for tokens in others):
            return True
    return False


def _searches_in_noise(
    exact: Exact, source: Source, options: SearchOptions, noise: float, few_bits: bool
) -> Iterator[set[tuple[int, ...]]]:
    """Yield the targets that PyTorch finds with the kernels' roundings (`few_bits`), then with noise on its logits."""
    facts = exact.model.facts
    for draw in range(DRAWS if few_bits else 0):
        with exact.own.context(draw):
            yield {generate(TorchRuntime(exact.own.model), [source], facts, options)[0][0].tokens}
    runtime = Remembering(TorchRuntime(exact.model))
    for share in SHARES:
        with exact.reproduced():
            found = generate(Noisy(runtime, share * noise, 0), [source] * NOISY_RUNS, facts, options)
        yield {each.tokens for (each, *_) in found}


def score_of(exact: Exact, source: Source, tokens: Sequence[int]) -> Array:
    """Return the log-prob of each token of a target, computed by PyTorch in float64: (T,)."""
    return token_log_probs(exact.logits([source], [tokens])[0], tokens)


def token_log_probs(logits: Array, tokens: Sequence[int]) -> Array:
    """Return the log-prob of each token (T,), given the logits before it (T, V)."""
    values: Doubles = logits.astype(np.float64)
    chosen: Array = log_softmax(values, values[np.arange(len(values)), list(tokens)][:, None])[:, 0]
    return chosen
