"""Following one text: what is shown is never taken back, and ends as the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.fakes import TableRuntime, random_table
from tests.search.test_generate import SEEDS, SOURCES, facts_of, stopping
from txport.bundles.bundle import Bundle
from txport.errors import UnsupportedError
from txport.search.generate import generate, search
from txport.search.options import SearchOptions

SIZE = 7


@settings(deadline=None, max_examples=80)
@given(
    seed=SEEDS,
    sources=SOURCES,
    options=st.fixed_dictionaries(
        {"max_new_tokens": st.integers(1, 9)},
        optional={
            "beams": st.integers(2, 4),
            "early_stopping": st.sampled_from([True, False, "never"]),
            "length_penalty": st.sampled_from([-1.0, 0.0, 2.0]),
        },
    ),
)
def test_what_is_certain_grows_and_is_what_comes_out(
    seed: int, sources: list[list[int]], options: dict[str, Any]
) -> None:
    early_stopping = options.pop("early_stopping", False)
    options = {**options, **stopping(options.get("beams", 1), early_stopping)}
    table = random_table(SIZE, seed, spread=2.0)
    chosen = SearchOptions(**options)
    steps = search(TableRuntime(table), sources, facts_of(SIZE), chosen)
    seen: list[list[tuple[int, ...]]] = []
    try:
        while True:
            seen.append(next(steps)())
    except StopIteration as end:
        found = end.value
    assert found == generate(TableRuntime(table), sources, facts_of(SIZE), chosen)
    for row, best in enumerate(found):
        lengths = [len(certain[row]) for certain in seen]
        assert lengths == sorted(lengths)
        assert all(best[0].tokens[: len(certain[row])] == certain[row] for certain in seen)
    if "beams" not in options:
        assert [len(certain[0]) for certain in seen][: len(found[0][0].tokens)] == [
            *range(1, 1 + len(found[0][0].tokens))
        ]


def test_a_search_that_is_closed_does_no_further_step() -> None:
    runtime = TableRuntime(random_table(SIZE, 0))
    steps = search(runtime, [[1]], facts_of(SIZE), SearchOptions(max_new_tokens=9, min_new_tokens=9))
    next(steps)
    steps.close()
    assert runtime.stepped == [1]


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"do_sample": True, "seed": 1}])
def test_a_text_can_be_streamed(bundle: Bundle, options: dict[str, Any]) -> None:
    model = txport.load(bundle.path)
    outputs = list(model.stream("bad", **options))
    assert outputs[-1] == model.generate("bad", **options)[0].output
    assert all(outputs[-1].startswith(output) for output in outputs)
    assert len(outputs) == len(set(outputs))


def test_only_one_hypothesis_can_be_streamed(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="only one hypothesis can be streamed, got nbest 2"):
        txport.load(bundle.path).stream("bad", beams=2, nbest=2)
