"""What each token looked at, whatever search found it, and beams that are worth less for what they never looked at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.fakes import attention_of, random_table
from tests.search.test_generate import SEEDS, SOURCES, every_sequence, search, sum_of
from tests.seeded import bundle_of
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.model import Model

SIZE = 6
WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 1, "nbest": 2},
    {"do_sample": True, "seed": 1, "repetition_penalty": 1.3},
    {"beams": 3, "nbest": 3},
    {"beams": 2, "repetition_penalty": 1.3},
    {"beams": 4, "nbest": 3, "beam_groups": 2, "diversity_penalty": 0.5},
    {"scores": False},
]


def looks_at(source: list[int], tokens: tuple[int, ...]) -> np.ndarray:
    """The table's own word: (T, S)."""
    return np.stack([attention_of(tuple(source), tokens[:place]) for place in range(len(tokens))])


@settings(max_examples=40)
@given(sources=SOURCES, seed=SEEDS, longest=st.integers(1, 6), options=st.sampled_from(WAYS))
def test_each_token_looked_where_the_table_says(
    sources: list[list[int]], seed: int, longest: int, options: dict[str, Any]
) -> None:
    table = random_table(SIZE, seed, spread=2.0)
    soft, hard = (
        search(table, sources, SIZE, max_new_tokens=longest, alignment=kind, **options) for kind in ("soft", "hard")
    )
    plain = search(table, sources, SIZE, max_new_tokens=longest, **options)
    for source, ours, ours_hard, without in zip(sources, soft, hard, plain, strict=True):
        assert (
            [each.tokens for each in ours] == [each.tokens for each in ours_hard] == [each.tokens for each in without]
        )
        assert all(each.alignment == () for each in without)
        for each, each_hard in zip(ours, ours_hard, strict=True):
            expected = looks_at(source, each.tokens)
            assert np.array(each.alignment) == pytest.approx(expected)
            assert list(each_hard.alignment) == expected.argmax(1).tolist()


@pytest.mark.parametrize("options", [{}, {"beams": 2}, {"beams": 4, "beam_groups": 2, "diversity_penalty": 1.0}])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_target_without_a_token_looked_nowhere(kind: str, options: dict[str, Any]) -> None:
    banned = {"suppress_tokens": range(SIZE), "max_new_tokens": 3}
    (found,) = search(random_table(SIZE, 0), [[1, 0]], SIZE, alignment=kind, **banned, **options)
    assert (found[0].tokens, found[0].alignment) == ((), ())


@settings(max_examples=40)
@given(
    size=st.integers(2, 4),
    longest=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 0.6, 1.0]),
    coverage=st.sampled_from([0.1, 1.0]),
    seed=SEEDS,
    sources=SOURCES,
)
def test_coverage_counts_when_a_hypothesis_ends(
    size: int, longest: int, penalty: float, coverage: float, seed: int, sources: list[list[int]]
) -> None:
    """With a beam as wide as everything, the best is the best of all sequences by the formula."""
    table = random_table(size, seed)
    beams = len(list(every_sequence(size, longest)))
    options: dict[str, Any] = {"beams": max(2, beams), "nbest": max(2, beams), "early_stopping": "never"}
    results = search(
        table, sources, size, max_new_tokens=longest, length_penalty=penalty, coverage_penalty=coverage, **options
    )
    for source, found in zip(sources, results, strict=True):
        worth = {}
        for tokens in every_sequence(size, longest):
            seen = looks_at(source, tokens).astype(np.float64).sum(0)
            missed = sum(math.log(min(max(each, 1e-30), 1.0)) for each in seen)
            worth[tokens] = sum_of(table, tuple(source), tokens) / len(tokens) ** penalty + coverage * missed
        expected = sorted(worth.values(), reverse=True)[: len(found)]
        assert [each.score for each in found] == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert all(each.score == pytest.approx(worth[each.tokens], rel=1e-4, abs=1e-4) for each in found)


@pytest.mark.parametrize("runtime", ["ort", "reference", "torch", "ort cpu", "cuda-stand-in cuda"])
def test_every_runtime_says_where_pytorch_looked(runtime: str, bundle: Bundle, checkpoint: Any, tmp_path: Any) -> None:
    engine, _, target = runtime.partition(" ")
    where = bundle.path
    if target:
        where = bundle_of(load_checkpoint(str(checkpoint)), tmp_path / target, target).path
    extra = {"checkpoint": checkpoint} if engine == "torch" else {}
    model = txport.load(where, runtime=engine, **extra)
    sources = [model.encode(text) for text in ("chief", "a", "di'ed")]
    found = model.search(sources, alignment="soft", beams=2, nbest=2, max_new_tokens=6)
    reference = load_checkpoint(str(checkpoint)).model
    for source, each in zip(sources, found, strict=True):
        for one in each:
            expected = attention(reference, source, one.tokens)
            assert np.array(one.alignment) == pytest.approx(expected, abs=1e-5)
            assert np.array(one.alignment).sum(1) == pytest.approx(np.ones(len(one.tokens)), abs=1e-5)


def attention(model: Model, source: list[int], tokens: tuple[int, ...]) -> np.ndarray:
    """The mean over the heads of the layer that is taken for alignment, of one pass over the whole target: (T, S)."""
    import torch

    with torch.inference_mode():
        memory = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
        token_ids = torch.tensor([[model.facts.writes.start, *tokens[:-1]]])
        decoded = model.decode(token_ids, memory, model.empty_state(1))
    assert model.facts.attention is not None
    attention = decoded.attention[model.facts.attention.layer]
    array: np.ndarray = attention[0].mean(0).numpy()
    return array
