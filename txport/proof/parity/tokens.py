"""What search finds on a runtime against what it finds on PyTorch, and where a difference is only a near-tie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

Array = NDArray[Any]

BEAMS = 4
SEARCHES = {"greedy": 1, f"beam {BEAMS}": BEAMS}  # name -> beams
LONG_SOURCE = 96  # tokens, beyond which a source is not searched from together with shorter ones
LAST_BIT = float(np.finfo(np.float32).eps)
NOISY_RUNS = 16
TINY = 1e-30
SHARES = (1.0, 0.1, 0.01)  # of the noise: as much as there may be hides what a little does


@dataclass(frozen=True)
class TokenComparison:
    """The tokens of one kind of search in one case: rows equal, near-ties, and the first row that is wrong.

    Rows after that one are not looked at, so they count as near-ties neither. `margin` is the gap in
    PyTorch's own scores that was taken for a tie and comes closest to what may be, `noise` how far a logit may move
    there.
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
        """Whether every row is equal, or as good as PyTorch's own within rounding."""
        return self.equal + self.near_ties == self.rows

    def describe(self) -> str:
        """What is wrong, in one line."""
        return f"{self.runtime}, case {self.case}: {self.search} tokens differ: {self.wrong}"


def search_all(case: Case, runtime: Runtime, facts: Facts, rules: Rules = NO_RULES) -> dict[str, list[Found]]:
    """The best target of each source by each kind of search; `rules` are more options, where they fit it."""
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
    """As `search_all` for several cases at once, on a runtime in float64, which gives no row anything of the others.

    Features and long sources are searched case by case: all rows are as long as the longest of them.
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
    """Greedy and beam tokens, row by row, with what PyTorch found; a row that differs passes only as a near-tie.

    Where logits are wrong, noise excuses nothing: nothing `may_tie` there, and none of its costly search is needed.
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
    """By how much PyTorch prefers its own tokens, and how far a logit may move."""

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
    """How much better PyTorch's own tokens are, if noise explains that others were found; None if it does not.

    Greedy: at the first token that differs, where both its logit and the other's may move by the noise; what comes
    after it follows from another beginning. Beams: by the mean over the target, which ranks them, or, since search
    may drop a beam at a tie, if PyTorch itself finds these tokens when its logits are moved by the noise. Where 8 or
    4 bits make search prune others, they may also be better ones, or as good as what PyTorch then finds.
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
    # search adds up log-probs in fp32, whose last bit is more than that where logits are nearly 0
    noise = LAST_BIT * max(float(np.abs(each).max()) for each in scores)
    for draw in range(DRAWS):  # the first is often enough
        noise = max(noise, tolerance.noise_of(largest, exact.own_error(sources, targets, draw)))
        if margin <= (2 * noise if beams == 1 else noise):
            return Tie(margin, noise)
    if beams == 1 and not rules:  # rules may choose by other numbers than the logits
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
    """Whether search on PyTorch, its logits moved by the noise, finds these tokens, or, in few bits, others as bad.

    `noise` is over the largest logit.
    """
    facts = exact.model.facts
    runtime = Remembering(TorchRuntime(exact.model))
    own = score_of(exact, source, actual.tokens).mean()
    options = options_of(facts, beams, max(len(expected.tokens), len(actual.tokens)), rules)
    for share in SHARES:
        found = generate(Noisy(runtime, share * noise, 0), [source] * NOISY_RUNS, facts, options)
        others = {tokens for (each, *_) in found if (tokens := each.tokens) != expected.tokens}
        if actual.tokens in others:
            return True
        if few_bits and any(score_of(exact, source, tokens).mean() <= own for tokens in others):
            return True
    return False


def score_of(exact: Exact, source: Source, tokens: Sequence[int]) -> Array:
    """Return the log-prob of each token of a target, computed by PyTorch in float64: (T,)."""
    return token_log_probs(exact.logits([source], [tokens])[0], tokens)


def token_log_probs(logits: Array, tokens: Sequence[int]) -> Array:
    """Return the log-prob of each token (T,), given the logits before it (T, V)."""
    values: Doubles = logits.astype(np.float64)
    chosen: Array = log_softmax(values, values[np.arange(len(values)), list(tokens)][:, None])[:, 0]
    return chosen
