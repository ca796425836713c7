"""The figures of `python -m tests.few_bits` count what they say."""

from __future__ import annotations

import numpy as np
import torch

from tests.few_bits.__main__ import NEAREST, TOKENS, compare_answers, compare_vectors, with_ends
from tests.few_bits.noise import BLOCK, STEPS, noisy


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


def test_answers_of_peers_end_as_ours() -> None:
    assert with_ends([[1, 2], [3] * TOKENS], 0) == [(1, 2, 0), (3,) * TOKENS]


def test_noise_is_as_wide_as_a_step_of_each_block() -> None:
    matrix = torch.arange(2.0 * BLOCK).repeat(64, 1) * torch.tensor([1.0, 100.0]).repeat_interleave(BLOCK)
    apart = (noisy(matrix, torch.Generator().manual_seed(0)) - matrix).abs()
    steps = torch.tensor([1.0, 100.0]) * (BLOCK - 1) / STEPS
    for block, step in zip(apart.split(BLOCK, dim=1), steps, strict=True):
        assert 0.49 * step < block.max() <= 0.5 * step
