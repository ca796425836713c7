"""Compare the graph that contains the search with search over the other graphs, on the golden inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.models.facts import Facts
from txport.proof.parity.cases import options_of
from txport.proof.verify.gaps import Check, check_of
from txport.proof.verify.golden import Golden
from txport.runtimes.base import Runtime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.search.scoring import score
from txport.search.single import built_in, generate_at_once

SINGLE = "single graph"
SEARCHES = ((1, 1.0), (4, 0.5))  # beams, and the length penalty
ROUNDING = 1e-5  # relative rounding error of a score


def check_single_graph(
    golden: Golden, runtime: Runtime, bundle: Bundle, name: str, provider: str, threads: int | None
) -> Check:
    """Compare greedy and beam search with the built-in rules, also with prefixes if targets may have some.

    Other tokens pass if they are as good within the noise, by the runtime's scores of both targets. These scores are
    trusted because earlier checks compare them with PyTorch's.
    """
    single = runtimes.load_single(name, bundle, provider=provider, threads=threads)
    facts = bundle.manifest.facts
    rules = built_in(bundle.manifest.generation)
    sources = golden.given(facts)
    limits = [stored.noise for stored in golden.logits]
    rows = [row for row, source in enumerate(sources) if _has_room(facts, source, rules)]
    sources = [sources[row] for row in rows]
    limits = [limits[row] for row in rows]
    problems = list[str]()
    equal = 0
    count = 0
    for prefixes in _prefixes(golden, rows, facts, rules):
        for beams, penalty in SEARCHES if rows else ():
            longest = min(golden.longest, facts.writes.longest - max(map(len, prefixes)))
            options = replace(options_of(facts, beams, longest, rules), length_penalty=penalty)
            driven = [each[0] for each in generate(runtime, sources, facts, options, prefixes)]
            at_once = [each[0] for each in generate_at_once(single, sources, options, prefixes)]
            equal += sum(one.tokens == two.tokens for one, two in zip(driven, at_once, strict=True))
            count += len(rows)
            for at in _wrong(runtime, sources, facts, driven, at_once, limits, options):
                both = f"{list(at_once[at].tokens)}, search over the other graphs {list(driven[at].tokens)}"
                problems.append(f"source {rows[at]}, {beams} beam{'s' if beams > 1 else ''}: {both}")
    return check_of(SINGLE, problems[:1], f"{equal} of {count} rows are those of search over the other graphs")


def _has_room(facts: Facts, source: Any, rules: dict[str, Any]) -> bool:
    """Return whether a prompt leaves room for the minimum number of new tokens."""
    least = max(1, rules.get("min_new_tokens", 0))
    return not facts.is_causal or len(source) + least <= facts.writes.longest


def _prefixes(
    golden: Golden, rows: Sequence[int], facts: Facts, rules: dict[str, Any]
) -> Iterator[list[tuple[int, ...]]]:
    """Yield the prefixes of all rows: first none, then one token each if the model has room for more."""
    yield [()] * len(rows)
    least = 1 + max(1, rules.get("min_new_tokens", 0))
    if facts.is_encoder_decoder and least <= facts.writes.longest:
        words = [golden.targets[row][0] for row in rows]
        yield [() if word in facts.writes.ends else (word,) for word in words]


def _wrong(
    runtime: Runtime,
    sources: Sequence[object],
    facts: Facts,
    driven: Sequence[Found],
    at_once: Sequence[Found],
    limits: Sequence[float],
    options: SearchOptions,
) -> Iterator[int]:
    """Yield the rows with different scores, and those with different tokens that are not as good."""
    other = [row for row, (one, two) in enumerate(zip(driven, at_once, strict=True)) if one.tokens != two.tokens]
    for row, (one, two) in enumerate(zip(driven, at_once, strict=True)):
        if row not in other and abs(one.score - two.score) > _limit(one, limits[row]):
            yield row
    for row in other:
        pair = [driven[row].tokens, at_once[row].tokens]
        if not all(pair):  # an empty target has no score
            yield row
            continue
        one, two = score(runtime, [sources[row]] * 2, pair, facts, options.length_penalty, by_step=True)
        gap = _parting(one, two) / 2 if options.beams == 1 else abs(one.score - two.score)
        if not gap <= _limit(one, limits[row]):
            yield row


def _limit(found: Found, noise: float) -> float:
    return noise + ROUNDING * max(1.0, abs(found.score))


def _parting(one: Found, two: Found) -> float:
    """Return the score difference of the first two tokens that differ; infinite if one target is a prefix."""
    pairs = enumerate(zip(one.tokens, two.tokens, strict=False))
    first = next((at for at, (each, other) in pairs if each != other), None)
    return float("inf") if first is None else abs(one.token_scores[first] - two.token_scores[first])
