"""Scores of given targets: what search says of what it finds, and what PyTorch says of anything."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.fakes import TableRuntime, random_table
from tests.search.test_generate import SEEDS, facts_of, search, sum_of
from tests.tiny import SAMPLES
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import TextError, TxportError
from txport.proof.parity.exact import Exact
from txport.proof.parity.tokens import score_of
from txport.search.scoring import score

SIZE = 7
TARGETS = st.lists(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=80)
@given(seed=SEEDS, targets=TARGETS, penalty=st.sampled_from([0.0, 1.0, 2.0]))
def test_scores_are_what_the_table_says(seed: int, targets: list[list[int]], penalty: float) -> None:
    table = random_table(SIZE, seed)
    sources = [[1] * (1 + row) for row in range(len(targets))]
    runtime = TableRuntime(table)
    for source, target, found in zip(
        sources, targets, score(runtime, sources, targets, facts_of(SIZE), penalty), strict=True
    ):
        assert found.tokens == tuple(target)
        assert found.score == pytest.approx(
            sum_of(table, tuple(source), tuple(target)) / len(target) ** penalty, abs=1e-4
        )
    assert runtime.stepped == [
        sum(len(target) > place for target in targets) for place in range(max(map(len, targets)))
    ]


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, beams=st.integers(1, 4))
def test_what_search_finds_scores_the_same(seed: int, beams: int) -> None:
    table = random_table(SIZE, seed, spread=2.0)
    (found,) = search(table, [[1]], SIZE, max_new_tokens=6, beams=beams, nbest=beams)
    again = score(TableRuntime(table), [[1]] * len(found), [each.tokens for each in found], facts_of(SIZE))
    for one, other in zip(found, again, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        np.testing.assert_allclose(one.token_scores, other.token_scores, atol=1e-5)


def test_a_model_scores_as_pytorch_does(bundle: Bundle, checkpoint: Any) -> None:
    model = txport.load(bundle.path)
    source = Exact.of(load_checkpoint(str(checkpoint)).model)
    targets = ["AA B", "CH", "D EH F", ""]
    for text, target, found in zip(SAMPLES, targets, model.score(SAMPLES, targets, batch_size=3), strict=True):
        ids = [*model.tokenizer.ids(target), model.facts.writes.end]
        np.testing.assert_allclose(found.token_scores, score_of(source, model.encode(text), ids), atol=1e-4)


def test_logits_are_what_search_steps_on(bundle: Bundle) -> None:
    model = txport.load(bundle.path)
    targets = ["AA B", "CH", ""]
    log_probs = [each.token_scores for each in model.score(SAMPLES[:3], targets)]
    for values, target, parts in zip(model.logits(SAMPLES[:3], targets, batch_size=2), targets, log_probs, strict=True):
        ids = [*model.tokenizer.ids(target), model.facts.writes.end]
        assert values.shape == (len(ids), model.facts.writes.size)
        normal = values - np.log(np.exp(values.astype(np.float64)).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(normal[np.arange(len(ids)), ids], parts, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[]], "a target must have 1 to 16 tokens, got 0"),
        ([[2] * 17], "a target must have 1 to 16 tokens, got 17"),
        ([[2, SIZE]], "a target must lie in the vocabulary, 0 to 6; got 2 to 7"),
    ],
)
def test_what_cannot_be_scored_is_refused(targets: list[list[int]], message: str) -> None:
    with pytest.raises(TextError, match=re.escape(message)):
        score(TableRuntime(random_table(SIZE, 0)), [[1]], targets, facts_of(SIZE))


@pytest.mark.parametrize(
    ("texts", "targets", "message"),
    [
        (["bad"], ["AA ZZ"], "'ZZ' is not a token of the vocabulary"),
        (["bad", "a"], ["AA"], "got fewer targets than texts: text 2 has none"),
        (["b@d"], ["AA"], "'b@d' has characters outside the vocabulary"),
    ],
)
def test_what_is_no_pair_is_refused(bundle: Bundle, texts: list[str], targets: list[str], message: str) -> None:
    with pytest.raises(TxportError, match=re.escape(message)) as raised:
        list(txport.load(bundle.path).score(texts, targets))
    assert isinstance(raised.value, TextError)
