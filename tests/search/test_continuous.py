"""Inputs that come and go find what they find alone, and no place stays empty for long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.fakes import SeatedRuntime, TableRuntime, random_table
from tests.runtimes.driven import ENGINES
from tests.search.test_generate import SEEDS, facts_of
from tests.seeded import bundle_of
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import UnsupportedError
from txport.runtimes.slots import spread
from txport.search.continuous import Scheduler
from txport.search.generate import generate
from txport.search.lanes import GenerationRequest
from txport.search.options import Found, SearchOptions

SIZE = 7
SOURCES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=9)
WAYS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{}, {"alignment": "soft"}, {"scores": False, "suppress_tokens": [2]}],
    "drawn": [{"do_sample": True, "seed": 3, "nbest": nbest, "top_k": top_k} for nbest in (1, 3) for top_k in (0, 4)],
    "beams": [
        {"beams": 3, "nbest": 2, "alignment": "hard", "coverage_penalty": 0.5},
        {"beams": 2, "early_stopping": True},
        {"beams": 4, "nbest": 4, "beam_groups": 2, "diversity_penalty": 0.7},
    ],
}
CONSTRAINTS: list[dict[str, Any]] = [
    {},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 2},
    {"repetition_penalty": 1.5},
    {"bad_words_ids": [[2, 3], [4]]},
]


def scheduler(
    width: int, seed: int, requests: list[GenerationRequest], options: SearchOptions, slots: int
) -> tuple[Scheduler, Any]:
    runtime = SeatedRuntime(random_table(SIZE, seed, spread=2.0), width)
    return Scheduler(runtime, requests, facts_of(SIZE), options, slots), runtime


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(
    sources=SOURCES,
    seed=SEEDS,
    slots=st.integers(1, 5),
    longest=st.integers(2, 6),
    data=st.data(),
    constraints=st.sampled_from(CONSTRAINTS),
)
def test_whatever_is_beside_a_request_it_finds_what_it_finds_alone(
    way: str, sources: list[list[int]], seed: int, slots: int, longest: int, data: Any, constraints: dict[str, Any]
) -> None:
    chosen = data.draw(st.sampled_from(WAYS[way]))
    prefixes = data.draw(
        st.lists(st.lists(st.integers(2, 6), max_size=3), min_size=len(sources), max_size=len(sources))
    )
    options = SearchOptions(max_new_tokens=longest, **chosen, **constraints)
    requests = list(zip(sources, prefixes, strict=True))
    width = options.nbest if options.do_sample else options.beams
    found = scheduler(width, seed, requests, options, slots)[0].run()
    table = random_table(SIZE, seed, spread=2.0)
    for (source, prefix), each in zip(requests, found, strict=True):
        (alone,) = generate(TableRuntime(table), [source], facts_of(SIZE), options, [prefix])
        assert [(one.tokens, one.alignment) for one in each] == [(one.tokens, one.alignment) for one in alone]
        assert [one.score for one in each] == pytest.approx([one.score for one in alone], abs=1e-5, nan_ok=True)


def test_slots_are_taken_as_they_get_free() -> None:
    """Ten targets of one token beside one of sixteen: eleven steps would be too many, were they apart."""
    requests: list[GenerationRequest] = [([0], [2] * 15), *([([1], [])] * 15)]
    options = SearchOptions(max_new_tokens=1)
    found, runtime = scheduler(1, 0, requests, options, 2)
    assert [len(each[0].tokens) for each in found.run()] == [16] + [1] * 15
    assert len(runtime.stepped) == 16
    assert max(runtime.stepped) == 2


def test_slots_that_nobody_will_take_are_given_up() -> None:
    requests: list[GenerationRequest] = [([0], [2] * 9), *([([1], [])] * 7)]
    found, runtime = scheduler(1, 0, requests, SearchOptions(max_new_tokens=1), 8)
    found.run()
    assert runtime.stepped == [8] + [1] * 9


@settings(max_examples=100)
@given(width=st.integers(1, 4), slots=st.integers(1, 4), data=st.data())
def test_rows_spread_within_their_places(width: int, slots: int, data: Any) -> None:
    wanted = np.array(
        [
            slot * width + offset
            for slot in range(slots)
            for offset in data.draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=width))
        ]
    )
    rows = spread(wanted, width)
    assert len(set(rows.tolist())) == len(wanted)
    assert (rows // width == wanted // width).all()
    assert set(wanted.tolist()) <= set(rows.tolist()), "the first of equals stays"


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def fused(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    return bundle_of(load_checkpoint(str(checkpoint)), tmp_path_factory.mktemp("continuous") / "toy", request.param)


def loaded(bundle: Bundle, workers: int = 1) -> txport.Model:
    return txport.load(bundle.path, runtime=ENGINES[bundle.manifest.target], threads=1, workers=workers)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True, "seed": 1, "nbest": 3},
        {"beams": 3, "nbest": 3, "alignment": "hard"},
        {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "coverage_penalty": 0.2},
    ],
)
@pytest.mark.parametrize(("slots", "count"), [(3, 11), (16, 20)])
def test_a_bundle_finds_the_same_in_continuous_batches(
    fused: Bundle, options: dict[str, Any], slots: int, count: int
) -> None:
    rng = np.random.default_rng(0)
    sources = [rng.integers(4, 20, rng.integers(1, 23)).tolist() for _ in range(count)]
    prefixes = [rng.integers(4, 20, rng.integers(0, 12)).tolist() for _ in range(count)]
    model = loaded(fused)
    longest = model.facts.writes.longest - 11

    def find(continuous: bool) -> list[list[Found]]:
        return model.search(
            sources, prefixes=prefixes, batch_size=slots, continuous=continuous, max_new_tokens=longest, **options
        )

    fixed = find(False)
    moving = find(True)
    assert [[(each.tokens, each.alignment) for each in one] for one in moving] == [
        [(each.tokens, each.alignment) for each in one] for one in fixed
    ]
    scores = [[each.score for one in found for each in one] for found in (fixed, moving)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


def test_batches_by_tokens_are_refused(fused: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="batch_tokens can't be combined with continuous batching"):
        loaded(fused).generate("bad", continuous=True, batch_tokens=9)
