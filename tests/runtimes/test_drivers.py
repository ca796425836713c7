"""What every driver of a target's own graphs must do; the cuda target's runs on the CPU in a GPU's place.

A test of how a driver is used belongs here, so that no driver goes without it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtimes.driven import SEARCHES, Driven, found, numbers, sources_of, tokens
from txport.errors import TxportError
from txport.runtimes.base import ContinuousRuntime
from txport.runtimes.inputs import infer
from txport.search.continuous import Scheduler
from txport.search.generate import generate, search
from txport.search.options import SearchOptions

TOYS = [("toy", "cpu", "fp32"), ("toy", "cuda", "fp16")]
CAUSAL = [("gpt2-tiny", "cpu", "fp32"), ("gpt2-tiny", "cuda", "bf16"), ("llama-tiny", "cuda", "fp16")]
ENCODERS = [("bert-tiny", "cpu", "fp32"), ("bert-tiny", "cuda", "fp16")]
Make = Callable[[str, str, str], Driven]


@pytest.fixture(scope="module", params=[*TOYS, *CAUSAL], ids="-".join)
def made(request: pytest.FixtureRequest, driven: Make) -> Driven:
    return driven(*request.param)


@pytest.fixture(scope="module", params=TOYS, ids="-".join)
def toy(request: pytest.FixtureRequest, driven: Make) -> Driven:
    return driven(*request.param)


@pytest.fixture(scope="module")
def encoder(driven: Make, request: pytest.FixtureRequest) -> Driven:
    return driven(*request.param)


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_tokens_are_those_of_pytorch_beyond_the_first_capacity(made: Driven, options: dict[str, Any]) -> None:
    bundle, runtime, reference = made
    sources = sources_of(bundle)
    expected, actual = (found(each, sources, bundle, **options) for each in (reference, runtime))
    assert tokens(actual) == tokens(expected)
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("options", [{}, {"scores": False}, {"beams": 4, "nbest": 3}], ids=str)
def test_caches_grow_twice_and_targets_are_those_of_pytorch(toy: Driven, options: dict[str, Any]) -> None:
    bundle, runtime, reference = toy
    sources = sources_of(bundle, 4)
    both = (found(each, sources, bundle, 70, min_new_tokens=66, **options) for each in (reference, runtime))
    expected, actual = map(tokens, both)
    assert actual == expected


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_is_found_is_the_same_in_continuous_batches(made: Driven, options: dict[str, Any]) -> None:
    bundle, runtime, _ = made
    assert isinstance(runtime, ContinuousRuntime)
    sources = sources_of(bundle)
    chosen = SearchOptions(max_new_tokens=36, **options)
    fixed = generate(runtime, sources, bundle.manifest.facts, chosen)
    moving = Scheduler(runtime, [(each, ()) for each in sources], bundle.manifest.facts, chosen, 3).run()
    assert tokens(moving) == tokens(fixed)
    assert numbers(moving) == pytest.approx(numbers(fixed), abs=1e-4, nan_ok=True)


@settings(max_examples=8)
@given(options=st.sampled_from(SEARCHES), data=st.data())
def test_any_sources_in_any_order_change_nothing(made: Driven, options: dict[str, Any], data: st.DataObject) -> None:
    """A source among any others, whose rows leave earlier and later than its own."""
    bundle, runtime, _ = made
    batch = data.draw(st.lists(st.sampled_from(sources_of(bundle, 19)), min_size=2, max_size=9))
    at = data.draw(st.integers(0, len(batch) - 1))
    together = found(runtime, batch, bundle, 24, **{"min_new_tokens": 3, **options})[at]
    (alone,) = found(runtime, [batch[at]], bundle, 24, **{"min_new_tokens": 3, **options})
    assert tokens([together]) == tokens([alone])
    assert numbers([together]) == pytest.approx(numbers([alone]), abs=1e-4, nan_ok=True)


def test_prefixes_and_attention_are_those_of_pytorch(toy: Driven) -> None:
    bundle, runtime, reference = toy
    sources = sources_of(bundle)
    prefixes = [[6, 7], [], [9], [4, 4, 4], [], [5], [8, 9]]
    for more in ({}, {"beams": 3, "coverage_penalty": 0.3}):
        options = SearchOptions(max_new_tokens=30, alignment="soft", **more)
        both = [generate(each, sources, bundle.manifest.facts, options, prefixes) for each in (reference, runtime)]
        assert tokens(both[1]) == tokens(both[0])
        for one, other in zip(*both, strict=True):
            np.testing.assert_allclose(other[0].alignment, one[0].alignment, atol=1e-4)


def test_what_is_streamed_is_what_a_batch_finds(made: Driven) -> None:
    bundle, runtime, _ = made
    sources = sources_of(bundle, 3)
    facts = bundle.manifest.facts
    for options in SEARCHES[::3]:
        together = tokens(found(runtime, sources, bundle, **options))
        for source, expected in zip(sources, together, strict=True):
            steps = search(runtime, [source], facts, SearchOptions(max_new_tokens=40, **options))
            ended = None
            while ended is None:
                try:
                    next(steps)
                except StopIteration as end:
                    ended = end.value
            assert tokens(ended) == [expected]


def test_a_stream_that_is_left_halts_nothing(made: Driven) -> None:
    """Whoever leaves a stream gives its memory to the next one, while steps of it may be under way."""
    model = made.model()
    sources = sources_of(made.bundle, 3)
    texts = [" ".join(map(str, each)) for each in sources]
    expected = [each.output for each in model.generate(texts, max_new_tokens=20)]
    for text, whole in zip(texts, expected, strict=True):
        for count, shown in enumerate(model.stream(text, max_new_tokens=20)):
            assert whole.startswith(shown)
            if count == 3:
                break
    assert [each.output for each in model.generate(texts, max_new_tokens=20)] == expected


@settings(max_examples=25)
@given(data=st.data())
def test_select_is_the_same_rows_as_in_pytorch(made: Driven, data: st.DataObject) -> None:
    """Any rows, kept, dropped, repeated or turned around, at any time: the next logits are PyTorch's."""
    both = made[1:]
    ids = np.array([[5, 9, 2], [6, 2, 0], [4, 8, 2]])
    states = [runtime.start(ids, np.array([3, 2, 3]), max_length=30) for runtime in both]
    given = ids[np.arange(3), [2, 1, 2]]  # of a causal model, the last tokens of its prompts
    for _ in range(data.draw(st.integers(1, 4))):
        chosen = np.array(data.draw(st.lists(st.integers(0, len(given) - 1), min_size=1, max_size=7)))
        states = [runtime.select(state, chosen) for runtime, state in zip(both, states, strict=True)]
        given = given[chosen]
        for _ in range(data.draw(st.integers(1, 2))):
            results = [runtime.step(given, state) for runtime, state in zip(both, states, strict=True)]
            states = [state for _, state in results]
            np.testing.assert_allclose(results[0][0].values, results[1][0].values, atol=1e-4)
            given = np.array(data.draw(st.lists(st.integers(3, 12), min_size=len(given), max_size=len(given))))


@settings(max_examples=20)
@given(data=st.data())
def test_a_row_that_goes_another_way_finds_what_pytorch_finds(toy: Driven, data: st.DataObject) -> None:
    """Greedy for a while, then any token, rows that rest, and greedy again: PyTorch's scores at each step."""
    both = toy[1:]
    ids = np.array([[5, 9, 2], [6, 2, 0]])
    states = [runtime.start(ids, np.array([3, 2]), max_length=40) for runtime in both]
    given = np.array([1, 1])
    for _ in range(data.draw(st.integers(1, 30))):
        results = [runtime.step(given, state, top=1) for runtime, state in zip(both, states, strict=True)]
        states = [state for _, state in results]
        np.testing.assert_allclose(results[0][0].values, results[1][0].values, atol=1e-4)
        assert results[0][0].ids is not None
        given = results[0][0].ids[:, 0].copy()
        if data.draw(st.integers(0, 4)) == 0:
            given[data.draw(st.integers(0, 1))] = data.draw(st.integers(3, 12))


def test_memory_that_is_used_again_is_clean(made: Driven) -> None:
    bundle, runtime, _ = made
    sources = sources_of(bundle)
    first = found(runtime, sources, bundle, beams=3)
    for part in (sources[:2], sources[::-1], sources[3:]):
        found(runtime, part, bundle, beams=3)
    assert found(runtime, sources, bundle, beams=3) == first


@pytest.mark.parametrize("continuous", [False, True])
def test_workers_give_the_same_results_in_order(made: Driven, continuous: bool) -> None:
    sources = [[4 + (7 * number + at) % 15 for at in range(1 + number % 9)] for number in range(20)]
    options = {"max_new_tokens": 12, "batch_size": 4, "beams": 2, "continuous": continuous}
    one, two = (made.model(workers).search(sources, **options) for workers in (1, 2))
    assert tokens(two) == tokens(one)
    assert numbers(two) == pytest.approx(numbers(one), abs=1e-4)


def test_many_threads_get_what_one_gets(made: Driven) -> None:
    """Buffers come back to one pool from all threads; nobody sees another's."""
    model = made.model()
    sources = sources_of(made.bundle, 5)
    work = [(sources[at % 5 :], {"beams": 1 + at % 3, "max_new_tokens": 30 + at % 7}) for at in range(14)]
    expected = [model.search(given, **options) for given, options in work]
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(lambda each: model.search(each[0], **each[1]), work)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": [[]]}, "must have 1 to 80 tokens, got 0"),
        ({"sources": [[5] * 81]}, "must have 1 to 80 tokens, got 81"),
        ({"sources": [[5, 22]]}, "token ids must lie in 0 to 21, got 5 to 22"),
        ({"sources": [[-1]]}, "token ids must lie in 0 to 21, got -1 to -1"),
        ({"sources": [[5]], "scores": False, "beams": 2}, "beam search can't do without scores"),
        ({"sources": [[5]], "max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens must not exceed"),
    ],
)
def test_what_cannot_be_searched_is_refused(toy: Driven, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TxportError, match=message):
        toy.model().search(**options)


@pytest.mark.parametrize("encoder", ENCODERS, ids="-".join, indirect=True)
def test_an_encoder_gives_what_pytorch_gives(encoder: Driven) -> None:
    bundle, runtime, reference = encoder
    sources = sources_of(bundle)
    both = zip(*(infer(each, sources, bundle.manifest.facts) for each in (reference, runtime)), strict=True)
    for expected, actual in both:
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], atol=1e-4)
