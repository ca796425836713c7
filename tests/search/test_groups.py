"""Groups of beams: the rules of diverse beam search, in plain Python, one source at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import Table, TableRuntime, Tokens, coarse_table, random_table
from tests.search.test_generate import EOS, SEEDS, SOURCES, facts_of, search
from txport.errors import UnsupportedError
from txport.runtimes.base import Floats, log_softmax
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions

SIZE = 11
PREFIX = st.lists(st.integers(2, SIZE - 1), max_size=3).map(tuple)


def few_words(size: int, seed: int) -> Table:
    """Logits of which most are impossible, so that some beams are dead; one that does not end is always possible."""
    whole = random_table(size, seed)

    def logits(source: Tokens, prefix: Tokens) -> Floats:
        drawn = whole(source, prefix)
        return np.where((drawn > 0.5) | (np.arange(size) == 2), drawn, np.float32(-np.inf))

    return logits


def diverse(
    table: Table, source: Tokens, longest: int, groups: int, width: int, penalty: float, prefix: Tokens = ()
) -> list[Found]:
    """The finished hypotheses of all groups, best first; a group ends when as many as its beams have ended."""
    running: list[list[tuple[float, Tokens]]] = [[(0.0, prefix)] for _ in range(groups)]
    finished: list[list[Found]] = [[] for _ in range(groups)]
    for length in range(1, longest + 1):
        heard: list[int] = []
        for group in (group for group in range(groups) if running[group]):
            candidates = []
            for total, tokens in running[group]:
                logits = table(source, tokens)[None]
                likely = log_softmax(logits, logits)[0]
                for token, log_prob in [(token, each) for token, each in enumerate(likely) if each > -np.inf]:
                    lost = np.float32(penalty) * np.float32(heard.count(token))
                    candidates.append((total + float(log_prob - lost), (*tokens, token)))
            candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * width]
            ending = [each for each in candidates[:width] if each[1][-1] == EOS]
            running[group] = [each for each in candidates if each[1][-1] != EOS][:width]
            heard += [tokens[-1] for _, tokens in running[group]]
            ending += running[group] if length == longest else []
            finished[group] += [Found(tokens, total / (len(tokens) - len(prefix))) for total, tokens in ending]
            finished[group] = sorted(finished[group], key=lambda found: -found.score)[:width]
            if length == longest or len(finished[group]) == width:
                running[group] = []
    return sorted((found for group in finished for found in group), key=lambda found: -found.score)


@settings(max_examples=40)
@given(
    groups=st.integers(2, 4),
    width=st.integers(1, 3),
    penalty=st.sampled_from([0.3, 1.0, 5.0]),
    longest=st.integers(1, 6),
    seed=SEEDS,
    sources=SOURCES,
    tables=st.sampled_from([few_words, random_table]),
    data=st.data(),
)
def test_groups_follow_the_rules_of_diverse_beam_search(
    groups: int,
    width: int,
    penalty: float,
    longest: int,
    seed: int,
    sources: list[list[int]],
    tables: Callable[[int, int], Table],
    data: Any,
) -> None:
    table = tables(SIZE, seed)
    beams = groups * width
    prefixes = data.draw(st.lists(PREFIX, min_size=len(sources), max_size=len(sources)))
    options = SearchOptions(
        beams=beams,
        nbest=beams,
        early_stopping=True,
        max_new_tokens=longest,
        beam_groups=groups,
        diversity_penalty=penalty,
    )
    found = generate(TableRuntime(table), sources, facts_of(SIZE), options, prefixes)
    for source, prefix, each in zip(sources, prefixes, found, strict=True):
        expected = diverse(table, tuple(source), longest, groups, width, penalty, prefix)
        assert [one.tokens for one in each] == [one.tokens for one in expected]
        assert [one.score for one in each] == pytest.approx([one.score for one in expected], abs=1e-5)


@settings(max_examples=40)
@given(seed=SEEDS, sources=SOURCES, penalty=st.sampled_from([0.5, 5.0]))
def test_a_forced_token_costs_no_group_anything(seed: int, sources: list[list[int]], penalty: float) -> None:
    table = random_table(SIZE, seed)
    options: dict[str, Any] = {"beams": 4, "nbest": 4, "max_new_tokens": 3, "beam_groups": 2}
    for each in search(table, sources, SIZE, **options, diversity_penalty=penalty, forced_bos_token_id=4):
        assert [(one.tokens[0], one.token_scores[0]) for one in each] == [(4, 0.0)] * 4
    options["min_new_tokens"] = 3
    for each in search(table, sources, SIZE, **options, diversity_penalty=penalty, forced_eos_token_id=5):
        assert [(one.tokens[2:], one.token_scores[2]) for one in each] == [((5,), 0.0)] * 4


@settings(max_examples=30)
@given(seed=SEEDS, sources=SOURCES)
def test_a_large_penalty_makes_the_first_tokens_differ(seed: int, sources: list[list[int]]) -> None:
    table = random_table(SIZE, seed, spread=2.0)
    options: dict[str, Any] = {"beams": 4, "nbest": 4, "max_new_tokens": 4, "min_new_tokens": 4}
    for each in search(table, sources, SIZE, **options, beam_groups=4, diversity_penalty=50.0):
        assert len({one.tokens[0] for one in each}) == 4


@settings(max_examples=40)
@given(seed=SEEDS, sources=SOURCES, groups=st.sampled_from([2, 4]), options=st.sampled_from([{}, {"patience": 2.0}]))
def test_groups_in_a_batch_find_what_they_find_alone(
    seed: int, sources: list[list[int]], groups: int, options: dict[str, Any]
) -> None:
    table = coarse_table(SIZE, seed)
    chosen = {"max_new_tokens": 5, "beams": 4, "nbest": 3, "beam_groups": groups, "diversity_penalty": 0.5, **options}
    together = search(table, sources, SIZE, **chosen)
    assert together == [search(table, [source], SIZE, **chosen)[0] for source in sources]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 4, "beam_groups": 3}, "beam_groups must be as many as beams can be parted into, got 3 for 4"),
        ({"beams": 4, "diversity_penalty": 1.0}, "diversity_penalty is for beam_groups; give these too"),
        ({"beams": 4, "beam_groups": 2}, "beam_groups find the same without a diversity_penalty; give one above 0"),
        (
            {"beams": 4, "beam_groups": 2, "diversity_penalty": -1.0},
            "diversity_penalty must lie in 0 to 1e\\+09, got -1.0",
        ),
        ({"beam_groups": 2}, "beam_groups must be as many as beams can be parted into, got 2 for 1"),
        ({"beams": 2, "beam_groups": 0}, "beam_groups must be at least 1, got 0"),
        ({"coverage_penalty": 0.2}, "coverage_penalty is for beam search; give beams too"),
        ({"beams": 2, "coverage_penalty": float("nan")}, "coverage_penalty must lie in 0 to 1e\\+09, got nan"),
        ({"alignment": "most"}, "alignment must be 'soft' or 'hard', got 'most'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SearchOptions(max_new_tokens=4, **options)
