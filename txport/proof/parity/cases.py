"""The inputs on which a bundle is compared with PyTorch: cases that every bundle has to pass, and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from txport.audio.spectrogram import drawn_features
from txport.bundles.bundle import Bundle
from txport.models.audio import Features
from txport.models.facts import Facts, Tokens
from txport.runtimes.inputs import Source
from txport.search.options import SearchOptions
from txport.text.load import tokenizer_of

Rules = Mapping[str, Any]  # options that are built into a graph
NO_RULES: Rules = MappingProxyType({})

FEW_TOKENS, FEW_HEARD = 6, 4  # tokens of a search in a large model; in one that hears, whose steps take longer
FEW_CALLS = 2  # calls of a graph after the first in a case of a large model, and one in the cases not in `STEPPED`
FEW_SOURCES = 2  # of features of a large model, those of its golden outputs: all have one length; two show if rows mix
STEPPED = ("one row", "padded rows", "every row padded", "longest", "real")
SEARCHED = ("one row", "every row padded", "real")  # cases of a large model that are searched even if they have targets
LONGEST_PROMPT = "longest prompt"
DROPPED = (
    "length 1",
    "longest",
    "most padding",
)  # cases of a causal model that a large one skips: others test what they do
# Features all have one length, so these cases are as "many rows" is.
ALIKE = ("length 1", "padded rows", "every row padded")
BRIEF = 512  # positions; larger batches have no whole runs in a large model, nor for PyTorch's own error
# Positions up to which whole graphs are compared, and the numbers of logits of a target that fit into memory. What
# depends on positions beyond is compared part by part (`proof.context`).
REACH, LEAST_REACH = 1024, 128
MOST_LOGITS = 1 << 24
BEYOND = "beyond a window of {}"  # a case whose prompt exceeds a sliding window
WINDOWED = 1024  # tokens of the largest window that a golden source exceeds
PAST = 9  # tokens by which a prompt exceeds a window
MANY = 12  # rows: more than there are threads, and more than kernels for few rows support
MANY_PLACES = 6000  # maximum positions of all features of a batch


@dataclass(frozen=True)
class Case:
    """A batch of sources, the number of target tokens per call of the decoder (`steps`), and whole targets.

    `steps` are the calls after the encoder or the prompt. `padding` is the number of padding positions after the
    longest source. `search_tokens` is the maximum length of targets that search finds; 0: no search.
    """

    name: str
    sources: Sequence[Source]
    steps: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...] = ()  # one per source, for teacher forcing; without any, PyTorch's greedy ones
    padding: int = 0
    search_tokens: int = 16

    @property
    def places(self) -> int:
        """The number of positions of all sources and targets, padded to the longest ones."""
        longest = (max(map(len, each), default=0) for each in (self.sources, self.targets))
        return len(self.sources) * sum(longest)


class Draw:
    """Random sources and targets that fit a model, from a seeded generator."""

    def __init__(self, facts: Facts, rng: np.random.Generator) -> None:
        self.facts = facts
        self.rng = rng

    def sources(self, *lengths: int) -> list[Source]:
        """Return random sources of these lengths, with the special tokens of the model if there is room for them.

        For a model that reads features, return random features (M, F) in [-1, 1), which all have the same length: one
        per given length, at most `most_rows`.
        """
        tokens = self.facts.reads
        if isinstance(tokens, Features):
            shape = (min(len(lengths), most_rows(self.facts)), tokens.size, tokens.frames)
            return list(self.rng.random(shape, dtype=np.float32) * 2 - 1)
        special = len(tokens.with_special([]))
        drawn = [self._tokens(self.facts.source_ids, length - special) for length in lengths]
        return [tokens.with_special(each)[-length:] for each, length in zip(drawn, lengths, strict=True)]

    def targets(self, *lengths: int) -> tuple[tuple[int, ...], ...]:
        """Return random tokens of one target per source."""
        kept = lengths[: most_rows(self.facts)]
        return tuple(tuple(self._tokens(self.facts.writes.size, max(1, length))) for length in kept)

    def _tokens(self, size: int, count: int) -> list[int]:
        special = set(self.facts.writes.special)
        ends = self.facts.writes.ends or (0,)
        allowed = np.array([id_ for id_ in range(size) if id_ not in special] or [min(ends[0], size - 1)])
        return [int(id_) for id_ in self.rng.choice(allowed, max(0, count))]


def draw_cases(bundle: Bundle, seed: int, more: int = 0) -> list[Case]:
    """Return the cases that every bundle has to pass (edge shapes, padding, real input), and `more` random ones."""
    facts = shortened(bundle.manifest.facts)
    draw = Draw(facts, np.random.default_rng(seed))
    longest, room = sides(facts)
    middle = max(1, min(longest // 2, 11))
    target_length = max(1, min(room // 2, 11))
    ragged = _ragged(middle)
    others = _ragged(target_length)
    beyond = (min(longest, 48), min(longest, 37))
    many = tuple(1 + 5 * row % min(longest, 9) for row in range(MANY))
    more_targets = tuple(1 + 5 * row % min(room, 9) for row in range(MANY))
    further = (min(room, 48), min(room, 37))
    spare = 0 if isinstance(facts.reads, Features) else min(3, longest - middle)
    cases = [
        Case("one row", draw.sources(middle), fitting(room, 1, 1, 1, 1), draw.targets(target_length)),
        Case("length 1", draw.sources(1), fitting(room, 1, 2), draw.targets(1)),
        Case("padded rows", draw.sources(*ragged), fitting(room, 3, 1, 2), draw.targets(*reversed(others))),
        Case("every row padded", draw.sources(*ragged), fitting(room, 2, 1), padding=spare),
        Case("many rows", draw.sources(*many), fitting(room, 2, 1, 1), draw.targets(*more_targets)),
        Case("longer than traced", draw.sources(*beyond), fitting(room, 17, 1, 5), draw.targets(*further)),
        Case("longest", draw.sources(longest), fitting(room, room - 1, 1), draw.targets(room)),
    ]
    if bundle.samples:
        tokenizer = tokenizer_of(bundle.texts, bundle.path, facts)
        texts = [tokenizer.encode(text)[:longest] for text in bundle.samples]
        cases.append(Case("real", texts, fitting(room, 1, 4, 1)))
    cases += _long_prompts(facts, draw)
    cases += _beyond_windows(facts, draw)
    cases += [draw_case(facts, seed, number) for number in range(1, more + 1)]
    if facts.target is None:
        return [replace(case, steps=(), targets=(), search_tokens=0) for case in cases]
    return cases


def most_rows(facts: Facts) -> int:
    """Return the maximum number of sources in a batch; audio features are limited by memory."""
    return max(1, min(MANY, MANY_PLACES // facts.reads.longest)) if isinstance(facts.reads, Features) else MANY


def reach_of(facts: Facts) -> tuple[int, int]:
    """Return how many positions of a source and of a target whole graphs are compared for, if it has so many.

    Sources of features all have one length, which is always reached. A target has a row of logits for each position,
    and so have the tokens of a masked language model.
    """
    target = REACH if facts.target is None else _reach_of_rows(facts.target.size)
    if facts.is_causal:
        return target, target
    if isinstance(facts.reads, Features):
        return facts.reads.longest, target
    widths = [size for each in facts.outputs if each.is_of_tokens for size in each.dims if isinstance(size, int)]
    return _reach_of_rows(max(widths, default=1)), target


def _reach_of_rows(size: int) -> int:
    """Return how many rows of so many numbers are compared at once."""
    return min(REACH, max(LEAST_REACH, MOST_LOGITS // size))


def shortened(facts: Facts) -> Facts:
    """Return the facts with sequences that are at most as long as whole graphs are compared for."""
    reads, writes = reach_of(facts)
    source = facts.source
    if isinstance(source, Tokens):
        source = replace(source, longest=min(source.longest, reads))
    target = None if facts.target is None else replace(facts.target, longest=min(facts.target.longest, writes))
    return replace(facts, source=source, target=target)


def not_reached(facts: Facts, *, by_part: bool) -> list[str]:
    """Describe the positions for which no whole graph is compared; `by_part`: its parts are, up to the last one."""
    sides = {"sources": facts.reads.longest, "targets": facts.writes.longest}
    if not facts.is_encoder_decoder:
        sides = {"sequences": facts.reads.longest}
    beyond = [
        f"{side} of more than {reach} tokens, of {longest}"
        for (side, longest), reach in zip(sides.items(), reach_of(facts), strict=False)
        if longest > reach
    ]
    if not beyond:
        return []
    rest = "; attention and positions are compared up to the last token, part by part" if by_part else ""
    return [f"whole graphs for {' and '.join(beyond)}{rest}"]


def sides(facts: Facts) -> tuple[int, int]:
    """Return the maximum lengths of sources and targets; prompts and new tokens share the longest sequence."""
    longest = facts.reads.longest
    if not facts.is_causal:
        return longest, facts.writes.longest
    return max(1, longest // 2), max(1, longest - longest // 2)


def _long_prompts(facts: Facts, draw: Draw) -> list[Case]:
    """Return cases of causal models whose prompts leave room for one token, beyond the limits of `sides`."""
    longest = facts.reads.longest - 1
    if not facts.is_causal or longest <= sides(facts)[0]:
        return []
    return [
        Case(LONGEST_PROMPT, draw.sources(longest), (1,), draw.targets(1), search_tokens=1),
        Case(DROPPED[-1], draw.sources(longest, 1), (1,), draw.targets(1, 1), search_tokens=1),
    ]


def _beyond_windows(facts: Facts, draw: Draw) -> list[Case]:
    """Return a prompt that exceeds the largest window that leaves room for it.

    In a layer with this window, its last tokens can't attend to the first ones.
    """
    fitting = [size for size in facts.windows if size + PAST < facts.reads.longest]
    return [
        Case(BEYOND.format(size), draw.sources(size + PAST), (1,), draw.targets(1), search_tokens=1)
        for size in sorted(fitting)[-1:]
    ]


def _ragged(middle: int) -> tuple[int, ...]:
    return middle, 1, max(1, middle // 2), max(1, middle - 1)


def draw_case(facts: Facts, seed: int, number: int) -> Case:
    """Return random case `number`, which depends only on the facts, the seed and the number."""
    rng = np.random.default_rng((seed, number))
    longest, room = sides(facts)
    draw = Draw(facts, rng)
    rows = int(rng.integers(1, 9))
    lengths = rng.integers(1, longest + 1, rows)
    others = rng.integers(1, room + 1, rows)
    steps = fitting(room, *(int(step) for step in rng.integers(1, 1 + max(1, room // 3), 5)))
    padding = 0 if isinstance(facts.reads, Features) else int(rng.integers(0, 1 + longest - lengths.max()))
    return Case(f"random {number}", draw.sources(*lengths), steps, draw.targets(*others), padding)


def fitting(longest: int, *lengths: int) -> tuple[int, ...]:
    """Return the lengths of those calls that together fit into the longest target."""
    total = 0
    kept = []
    for length in lengths:
        if length > 0 and total + length <= longest:
            total += length
            kept.append(length)
    return tuple(kept)


def lighten(cases: Sequence[Case], facts: Facts) -> tuple[list[Case], list[str]]:
    """Return the cases of a large model, and a description of what was left out.

    The longest source and the longest past are kept. What is left out is tested by other cases, or does not depend on
    the size of a model, like the driver's loop. A case without targets and search has no whole runs.
    """
    if not any(case.search_tokens for case in cases):
        return list(cases), []
    dropped = DROPPED if any(case.name == LONGEST_PROMPT for case in cases) else ()
    shared: Sequence[Source] = ()
    if isinstance(facts.reads, Features):
        dropped = ALIKE
        shared = [drawn_features(facts.reads, number) for number in range(FEW_SOURCES)]  # which are encoded once
    tokens = FEW_HEARD if shared else FEW_TOKENS
    lighter = [_lightened(case, shared, tokens) for case in cases if case.name not in dropped]
    unsearched = [case.name for case in lighter if not case.search_tokens]
    silent = [case.name for case in lighter if not case.targets and not case.search_tokens]
    left_out = [f"search beyond {tokens} tokens, and in the cases {', '.join(unsearched)}"]
    left_out += [f"whole targets in the cases {', '.join(silent)}"] if silent else []
    left_out += [f"the case {case.name}" for case in cases if case.name in dropped]
    left_out.append(
        f"calls of graphs beyond 1 or {FEW_CALLS} after the first, and whole targets beyond {tokens} tokens"
    )
    if shared:
        left_out.append(f"more than {FEW_SOURCES} different sources of features")
    return lighter, left_out


def _lightened(case: Case, shared: Sequence[Source], tokens: int) -> Case:
    targets = tuple(target[:tokens] for target in case.targets)
    steps = case.steps[: FEW_CALLS if case.name in STEPPED else 1]
    case = replace(case, steps=steps, targets=targets)
    if shared:
        sources = shared[: len(case.sources)]
        case = replace(case, sources=sources, targets=case.targets[: len(sources)])
    if case.places > BRIEF:
        return replace(case, targets=(), search_tokens=0)
    return replace(case, search_tokens=tokens if case.name in SEARCHED or not case.targets else 0)


def brief(cases: Sequence[Case]) -> list[Case]:
    """Return the cases with targets and small batches; the smallest one if no batch is small."""
    run = [case for case in cases if case.targets]
    return [case for case in run if case.places <= BRIEF] or sorted(run, key=lambda case: case.places)[:1]


def options_of(facts: Facts, beams: int, tokens: int, rules: Rules = NO_RULES) -> SearchOptions:
    """Return options for a search of `tokens` tokens, or of the minimum that the rules require."""
    kept = {name: value for name, value in rules.items() if beams > 1 or name != "early_stopping"}
    most = max(min(tokens, sides(facts)[1]), kept.get("min_new_tokens", 0))
    return SearchOptions(max_new_tokens=most, beams=beams, **kept)
