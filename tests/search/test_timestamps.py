"""Where times may come: the rules of the paper, for any scores and any beginning."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_constraints import SEEDS
from txport.search.timestamps import TimestampRules

SIZE, END, FIRST, BEGIN = 16, 5, 9, 2  # text is below END, NO_TIMES just before FIRST
NO_TIMES = FIRST - 1


def written(seed: int, length: int, latest: int | None) -> tuple[list[int], Any]:
    """What greedy search writes with random scores: the tokens, and what was allowed before each of them."""
    rng = np.random.default_rng(seed)
    rules = TimestampRules(BEGIN, FIRST, END, latest)
    tokens = [6, 7]
    allowed = []
    for _ in range(length):
        scores = rng.normal(0, 2, (1, SIZE)).astype(np.float32)
        after = rules(scores, np.array([tokens]))[0]
        assert (np.isneginf(after) | (after == scores[0])).all()
        if np.isneginf(after).all():
            break
        allowed.append(after)
        tokens.append(int(after.argmax()))
        if tokens[-1] == END:
            break
    return tokens[BEGIN:], allowed


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, length=st.integers(1, 12), latest=st.none() | st.integers(0, 6))
def test_times_stand_in_pairs_and_never_go_back(seed: int, length: int, latest: int | None) -> None:
    tokens, allowed = written(seed, length, latest)
    times = [token for token in tokens if token >= FIRST]
    assert tokens[0] >= FIRST
    assert latest is None or tokens[0] <= FIRST + latest
    assert NO_TIMES not in tokens
    assert times == sorted(times)
    for before, token, behind in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token >= FIRST and before >= FIRST:
            assert behind < FIRST  # two times begin a part
        elif token >= FIRST:
            assert behind >= END  # one behind text ends it: it stands once more, or all is said
    for after in allowed:
        probabilities = np.exp(after[np.isfinite(after)].astype(np.float64))
        likelier = np.exp(after[FIRST:].astype(np.float64)).sum() > probabilities.max(initial=0.0)
        assert not likelier or after.argmax() >= FIRST


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, rows=st.integers(1, 5), length=st.integers(0, 6))
def test_each_row_is_judged_by_itself(seed: int, rows: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    rules = TimestampRules(BEGIN, FIRST, END)
    scores = rng.standard_normal((rows, SIZE)).astype(np.float32)
    tokens = rng.integers(0, SIZE, (rows, BEGIN + length))
    together = rules(scores, tokens)
    alone = [rules(scores[row : row + 1], tokens[row : row + 1])[0] for row in range(rows)]
    np.testing.assert_array_equal(together, alone)


def test_a_row_that_is_still_given_is_left_as_it_is() -> None:
    scores = np.random.default_rng(0).standard_normal((2, SIZE)).astype(np.float32)
    assert TimestampRules(3, FIRST, END)(scores, np.array([[6, 7], [6, 8]])) is scores
