"""Whether the graph that searches by itself finds what search over the other graphs finds, on the golden inputs."""

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
ROUNDING = 1e-5  # of a score


def check_single_graph(
    golden: Golden, runtime: Runtime, bundle: Bundle, name: str, provider: str, threads: int | None
) -> Check:
    """Greedy and with beams, with prefixes too where targets may have some; by the rules that are built in.

    Other tokens may be as good, within the noise; what the runtime says of both is what counts, since the checks before
    hold it against PyTorch.
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
    """Whether as many tokens may follow a prompt as there have to be."""
    least = max(1, rules.get("min_new_tokens", 0))
    return facts.task != "causal" or len(source) + least <= facts.writes.longest


def _prefixes(
    golden: Golden, rows: Sequence[int], facts: Facts, rules: dict[str, Any]
) -> Iterator[list[tuple[int, ...]]]:
    """What targets begin with: nothing; and a token, where another one fits."""
    yield [()] * len(rows)
    least = 1 + max(1, rules.get("min_new_tokens", 0))
    if facts.task == "seq2seq" and least <= facts.writes.longest:
        words = [golden.targets[row][0] for row in rows]
        yield [() if word in facts.writes.ends else (word,) for word in words]


def _wrong(
    runtime: Runtime,
    sources: Sequence[Any],
    facts: Facts,
    driven: Sequence[Found],
    at_once: Sequence[Found],
    limits: Sequence[float],
    options: SearchOptions,
) -> Iterator[int]:
    """The rows whose scores differ, or whose tokens do and are not as good."""
    other = [row for row, (one, two) in enumerate(zip(driven, at_once, strict=True)) if one.tokens != two.tokens]
    for row, (one, two) in enumerate(zip(driven, at_once, strict=True)):
        if row not in other and abs(one.score - two.score) > _limit(one, limits[row]):
            yield row
    for row in other:
        pair = [driven[row].tokens, at_once[row].tokens]
        if not all(pair):  # what is scored has a token
            yield row
            continue
        one, two = score(runtime, [sources[row]] * 2, pair, facts, options.length_penalty)
        gap = _parting(one, two) / 2 if options.beams == 1 else abs(one.score - two.score)
        if not gap <= _limit(one, limits[row]):
            yield row


def _limit(found: Found, noise: float) -> float:
    return noise + ROUNDING * max(1.0, abs(found.score))


def _parting(one: Found, two: Found) -> float:
    """How much the first two tokens that differ differ in; infinite if one target is the beginning of the other."""
    pairs = enumerate(zip(one.tokens, two.tokens, strict=False))
    first = next((at for at, (each, other) in pairs if each != other), None)
    return float("inf") if first is None else abs(one.token_scores[first] - two.token_scores[first])
