"""The figures of `python -m tests.few_bits` count what they say."""

from __future__ import annotations

import numpy as np

from tests.few_bits.__main__ import NEAREST, TOKENS, compare_answers, compare_vectors


def test_answers_count_until_the_first_other_token() -> None:
    expected = [(1, 2, 3), (4, 5, 6), (7, 8)]
    actual = [(1, 2, 3), (4, 9, 6), (7, 8, 8)]
    mean = (TOKENS + 1 + 2) / 3
    assert compare_answers(expected, actual).startswith(f"{mean:.1f} of {TOKENS} tokens")
    assert compare_answers(expected, actual).endswith("1 of 3 answers are equal")


def test_vectors_count_angles_and_neighbours() -> None:
    vectors = np.random.default_rng(0).standard_normal((4 * NEAREST, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert compare_vectors(vectors, vectors).endswith(f"100.0% of the {NEAREST} nearest stay")
    assert compare_vectors(vectors, -vectors).startswith("1 - cosine 2.00000")
    assert "100.0%" not in compare_vectors(vectors, vectors[::-1])
