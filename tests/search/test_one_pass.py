"""Given targets of causal models: the cpu driver computes their logits in one pass, not with a step for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.runtimes.test_prompts import written
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import RunError, TextError
from txport.proof.parity.check import check
from txport.proof.parity.measures import ONE_PASS
from txport.proof.verify.check import BATCH, LOGITS, verify
from txport.runtimes import load
from txport.runtimes.base import Floats, Ints, Runtime
from txport.runtimes.ort import fused
from txport.runtimes.ort.fused import Binding, FusedRuntime
from txport.search.numbers import numbers_only
from txport.search.scoring import logits, score

PRESETS = ["gpt2-tiny", "llama-tiny"]
TOKENS = st.integers(2, 60)
Found = Iterator[tuple[Ints, Ints, Floats]]
forward = FusedRuntime.forward


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Bundle, Runtime]]:
    @cache
    def open_(preset: str, precision: str) -> tuple[Bundle, Runtime]:
        bundle, _ = written(tmp_path_factory.mktemp("bundles") / "bundle", preset, precision)
        return bundle, load("ort", bundle)

    return open_


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.lists(TOKENS, min_size=1, max_size=30), st.lists(TOKENS, min_size=1, max_size=30)),
        min_size=1,
        max_size=6,
    ),
    part=st.sampled_from([16, 32, 128]),
    together=st.sampled_from([1, 3000, 1 << 24]),
)
def test_logits_of_one_pass_are_those_of_steps(
    preset: str, precision: str, pairs: list[tuple[list[int], list[int]]], part: int, together: int, opened: Any
) -> None:
    bundle, runtime = opened(preset, precision)
    facts = bundle.manifest.facts
    prompts, targets = zip(*pairs, strict=True)
    with mock.patch.object(fused, "PROMPT_PART", part), mock.patch.object(fused, "LOGITS_TOGETHER", together):
        found = logits(runtime, prompts, targets, facts)
        alone = [logits(runtime, [prompt], [target], facts)[0] for prompt, target in pairs]
    assert [len(each) for each in found] == list(map(len, targets))
    for values, by_itself, wanted in zip(
        found, alone, logits(runtime, prompts, targets, facts, by_step=True), strict=True
    ):
        assert np.array_equal(values, by_itself), "the bits depend on the batch"
        assert np.abs(values - wanted).max() < (1e-5 if precision == "fp32" else 0.05) * np.abs(wanted).max()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_score_takes_no_step(preset: str, opened: Any) -> None:
    bundle, runtime = opened(preset, "fp32")
    facts = bundle.manifest.facts
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 60, 7).tolist(), rng.integers(2, 60, 1).tolist()]
    targets = [rng.integers(2, 60, facts.writes.longest - 7).tolist(), [5]]
    with mock.patch.object(Binding, "run", autospec=True, side_effect=Binding.run) as step:
        found = score(numbers_only(runtime), prompts, targets, facts)
        assert step.call_count == 0
        again = score(numbers_only(runtime), prompts, targets, facts, by_step=True)
        assert step.call_count == len(targets[0]) - 1, "the run of a prompt gives the first token's logits"
    for one, other in zip(found, again, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.token_scores, other.token_scores, atol=1e-4)
    with pytest.raises(TextError, match="exceed the model's longest sequence"):
        score(runtime, prompts, [[*targets[0], 3], [5]], facts)
    for by_step in (False, True):
        with pytest.raises(TextError, match="needs a prompt of at least one token"):
            score(runtime, [[5], []], [[5], [5]], facts, by_step=by_step)


def test_texts_run_together_while_their_logits_are_few() -> None:
    lengths = np.array([20, 20, 21, 22, 40, 200])
    slices = fused.parts_of(lengths, 128)
    assert [(each.start, each.stop) for each in slices] == [(0, 4), (4, 5), (5, 6)]
    slices = fused.parts_of(lengths, 128, np.array([1, 1, 1, 3, 2, 150]), 3)
    assert [(each.start, each.stop) for each in slices] == [(0, 3), (3, 4), (4, 5), (5, 6)]


def test_one_pass_is_not_scored_by_nan(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, runtime = opened("llama-tiny", "fp32")

    def nan(self: FusedRuntime, *given: Any) -> Found:
        for rows, places, values in forward(self, *given):
            yield rows, places, np.where(places[:, None] == 3, np.nan, values).astype(np.float32)

    monkeypatch.setattr(FusedRuntime, "forward", nan)
    with pytest.raises(RunError, match="the model's scores are NaN"):
        score(numbers_only(runtime), [[5, 6]], [[7, 8, 9]], bundle.manifest.facts)


def shifted(self: FusedRuntime, texts: Ints, lengths: Ints, first: Ints) -> Found:
    """The logits of the tokens before, of all texts but those with a prompt of one token."""
    for rows, places, values in forward(self, texts, lengths, np.maximum(first - 1, 0)):
        kept = places < lengths[rows] - (first[rows] > 0)
        yield rows[kept], places[kept] + (first[rows[kept]] > 0), values[kept]


def test_a_runtime_whose_pass_differs_from_its_steps_is_found(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint("preset:llama-tiny")
    bundle, _ = opened("llama-tiny", "fp32")
    report = check(bundle, checkpoint, {"ort": "cpu"})
    assert {each.passed for each in report.tensors if each.kind == ONE_PASS} == {True}
    monkeypatch.setattr(FusedRuntime, "forward", shifted)
    report = check(bundle, checkpoint, {"ort": "cpu"})
    assert {each.kind for each in report.tensors if not each.passed} == {ONE_PASS}
    assert not report.passed
    assert all(ONE_PASS in each.describe() for each in report.tensors if not each.passed)


def test_verify_finds_it_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = txport.export("preset:llama-tiny", tmp_path / "bundle", target="cpu")
    assert verify(bundle.path).passed
    monkeypatch.setattr(FusedRuntime, "forward", shifted)
    (found,) = (each for each in verify(bundle.path).checks if each.name == LOGITS)
    assert found.verdict == "fail"
    assert found.detail.endswith("in one pass")

    def batched(self: FusedRuntime, *given: Any) -> Found:
        for rows, places, values in forward(self, *given):
            yield rows, places, values * np.float32(1 + 1e-3 * (len(given[0]) > 1))

    monkeypatch.setattr(FusedRuntime, "forward", batched)
    (found,) = (each for each in verify(bundle.path).checks if each.name == BATCH)
    assert found.verdict == "fail"
    assert found.detail.endswith("in one pass")
