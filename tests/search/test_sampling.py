"""Drawing tokens: by their probabilities, the same for the same seed, alone or in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import TableRuntime, random_table
from tests.search.test_constraints import unchanged
from tests.search.test_generate import EOS, SEEDS, SOURCES, facts_of, search, sum_of
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.search.sampling import draw, nucleus

SIZE = 8
WARPS = st.fixed_dictionaries(
    {"do_sample": st.just(True), "max_new_tokens": st.integers(1, 8)},
    optional={
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "top_k": st.integers(0, 10),
        "top_p": st.sampled_from([0.3, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 0.5]),
        "min_new_tokens": st.integers(0, 1),
        "no_repeat_ngram_size": st.integers(0, 2),
    },
)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 9), table=SEEDS, sources=SOURCES, options=WARPS, samples=st.integers(1, 3))
def test_a_seed_draws_the_same_alone_in_a_batch_and_with_more_samples(
    seed: int, table: int, sources: list[list[int]], options: dict[str, Any], samples: int
) -> None:
    logits = random_table(SIZE, table, spread=2.0)
    together = search(logits, sources, SIZE, **options, seed=seed, nbest=samples)
    for source, found in zip(sources, together, strict=True):
        (alone,) = search(logits, [source], SIZE, **options, seed=seed)
        assert len(found) == samples
        assert found[0].tokens == alone[0].tokens
        for each in found:
            if np.isfinite(each.score):
                expected = sum_of(logits, tuple(source), each.tokens) / len(each.tokens)
                assert each.score == pytest.approx(expected, abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 9), table=SEEDS, sources=SOURCES, options=WARPS, count=st.integers(1, 10))
def test_few_candidates_are_enough_for_top_k(
    seed: int, table: int, sources: list[list[int]], options: dict[str, Any], count: int
) -> None:
    logits = random_table(SIZE, table, spread=2.0)
    chosen = {**options, "top_k": count, "seed": seed}
    few, every = (search(logits, sources, SIZE, **chosen, **more) for more in ({}, {"logits_processor": unchanged}))
    assert [found[0].tokens for found in few] == [found[0].tokens for found in every]


@settings(deadline=None, max_examples=40)
@given(
    table=SEEDS,
    sources=SOURCES,
    certain=st.sampled_from(
        [{"top_k": 1}, {"temperature": 1e-4}, {"temperature": 1e-307}, {"top_p": 1e-6}, {"min_p": 1.0}]
    ),
)
def test_where_nothing_is_left_to_chance_it_is_greedy(
    table: int, sources: list[list[int]], certain: dict[str, Any]
) -> None:
    logits = random_table(SIZE, table, spread=2.0)
    drawn = search(logits, sources, SIZE, max_new_tokens=6, do_sample=True, **certain)
    greedy = search(logits, sources, SIZE, max_new_tokens=6)
    assert [found[0].tokens for found in drawn] == [found[0].tokens for found in greedy]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, [0.7246, 0.1812, 0.0652, 0.029]),
        ({"top_p": 0.6}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"min_p": 0.25}, [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(options: dict[str, Any], expected: list[float]) -> None:
    count = 20_000
    order = [2, 0, 3, 1]
    scores = np.tile(np.log([0.5, 0.25, 0.15, 0.1]).astype(np.float32)[order], (count, 1))
    chosen = SearchOptions(max_new_tokens=1, do_sample=True, **options)
    places = draw(scores, chosen, np.random.default_rng(0).random(count))
    often = np.bincount(places, minlength=4) / count
    np.testing.assert_allclose(often, np.array(expected)[order], atol=0.012)


@pytest.mark.parametrize("forced", [{"forced_eos_token_id": EOS}, {"forced_bos_token_id": 4}])
def test_a_top_k_beyond_the_vocabulary_is_the_vocabulary(forced: dict[str, Any]) -> None:
    """Where a token is forced, too: nothing has as many numbers as it says."""
    options = {"do_sample": True, "seed": 2, "max_new_tokens": 3, **forced}
    few, many = (search(random_table(SIZE, 0), [[1], [0, 1]], SIZE, **options, top_k=k) for k in (SIZE, 2**62))
    assert few == many


@pytest.mark.parametrize("way", [{"do_sample": True, "seed": 2}, {"do_sample": True, "top_k": 4}, {"beams": 3}, {}])
@pytest.mark.parametrize("factor", [10.0, 1e9])
def test_a_growing_penalty_of_length_ends_a_target_with_a_finite_score(way: dict[str, Any], factor: float) -> None:
    """At the first place where it may end; the factor alone would be infinite there."""
    facts = facts_of(SIZE, max_length=64)
    options = SearchOptions(**way, exponential_decay_length_penalty=(0, factor), min_new_tokens=45, max_new_tokens=60)
    (found,) = generate(TableRuntime(random_table(SIZE, 1)), [[1]], facts, options)
    assert found[0].tokens.index(EOS) == 45 == len(found[0].tokens) - 1
    assert np.isfinite(found[0].score)


@settings(deadline=None)
@given(
    weights=st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=4),
    share=st.sampled_from([1e-6, 0.1, 0.35, 0.5, 0.77, 0.999]),
)
def test_a_nucleus_is_the_fewest_that_are_together_so_likely(weights: list[list[int]], share: float) -> None:
    for row, kept in zip(weights, nucleus(np.array(weights, float), share).tolist(), strict=True):
        expected = [0.0] * len(row)
        reached = 0
        for place in sorted(range(len(row)), key=lambda place: -row[place]):  # of equals, the first come first
            if reached < share * sum(row):
                expected[place] = float(row[place])
            reached += row[place]
        assert kept == expected


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_no_heat_makes_a_forbidden_token_possible(options: dict[str, Any]) -> None:
    few = {"do_sample": True, "nbest": 20, "temperature": 1e35, "suppress_tokens": [1, 2, 3, 4], **options}
    (found,) = search(random_table(SIZE, 0), [[1]], SIZE, max_new_tokens=8, **few)
    assert {token for each in found for token in each.tokens} <= {0, 5, 6, 7}


def test_without_a_seed_two_runs_differ() -> None:
    options = SearchOptions(max_new_tokens=12, do_sample=True, suppress_tokens=[EOS])
    runs = [generate(TableRuntime(random_table(SIZE, 0)), [[1]] * 4, facts_of(SIZE), options) for _ in range(2)]
    assert [found[0].tokens for found in runs[0]] != [found[0].tokens for found in runs[1]]


def test_samples_of_one_source_differ() -> None:
    (found,) = search(random_table(SIZE, 0), [[1]], SIZE, max_new_tokens=12, do_sample=True, seed=3, nbest=5)
    assert len({each.tokens for each in found}) == 5
