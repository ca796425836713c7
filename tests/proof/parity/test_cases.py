from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fakes import TableRuntime, TableState
from tests.tiny import tiny_facts
from txport import bench
from txport.models.architectures import gpt2, llama
from txport.models.facts import Facts
from txport.proof.parity.cases import (
    BEYOND,
    FEW_SOURCES,
    LONG,
    Case,
    Draw,
    _long_prompts,
    draw_cases,
    lighten,
    lightest,
    not_reached,
)
from txport.proof.parity.tokens import search_all, search_together
from txport.proof.verify.golden import DRAWN, LEAST, Size, _lengths
from txport.runtimes.base import Ints

PAD, START, END = 0, 1, 2


@pytest.mark.parametrize(("bos", "eos"), [(False, True), (True, True), (True, False), (False, False)])
def test_drawn_sources_begin_and_end_as_the_config_says(bos: bool, eos: bool) -> None:
    facts = tiny_facts(add_source_bos=bos, add_source_eos=eos)
    drawn = Draw(facts, np.random.default_rng(0)).sources(9, 5, 3, 1)
    assert [len(source) for source in drawn] == [9, 5, 3, 1]
    for source in [*drawn[:3], *bench.draw_source(facts, bench.Protocol(batch=2, source=6)).tolist()]:
        assert (source[0] == START, source[-1] == END) == (bos, eos)
        inner = source[bos : len(source) - eos]
        assert not {PAD, START, END} & set(inner)
    assert (drawn[3] == [END]) == eos


def test_a_vocabulary_without_the_end_token_can_be_drawn_from() -> None:
    facts = tiny_facts(source_vocab_size=1, eos_id=2, add_source_eos=False, tied="none")
    assert Draw(facts, np.random.default_rng(0)).sources(3) == [[0, 0, 0]]


@pytest.mark.parametrize(("longest", "lengths"), [(20, [[19], [19, 1]]), (3, [[2], [2, 1]]), (2, [])])
def test_prompts_up_to_the_last_place_are_compared(longest: int, lengths: list[list[int]]) -> None:
    sizes = {
        "d_model": 8,
        "heads": 2,
        "feed_forward": 8,
        "decoder_layers": 1,
        "vocab_size": 9,
        "pad_id": 0,
        "eos_id": 1,
    }
    facts = gpt2.facts(gpt2.GPT2Config(**sizes, max_length=longest))
    cases = _long_prompts(facts, Draw(facts, np.random.default_rng(0)))
    assert [[len(source) for source in case.sources] for case in cases] == lengths
    assert all(case.steps == (1,) and {len(each) for each in case.targets} == {1} for case in cases)
    assert _long_prompts(tiny_facts(), Draw(tiny_facts(), np.random.default_rng(0))) == []


def windowed(*windows: int, longest: int) -> Facts:
    sizes = {"vocab_size": 9, "d_model": 8, "heads": 2, "decoder_layers": len(windows)}
    return llama.facts(llama.LlamaConfig(**sizes, max_length=longest, windows=windows))


def cases_of(facts: Facts) -> dict[str, Case]:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(facts=facts), samples=[])
    return {case.name: case for case in draw_cases(bundle, 0)}


def beyond_windows(cases: dict[str, Case]) -> dict[int, list[int]]:
    """The lengths of the prompts that go beyond each window."""
    found = {each.window: [len(source) for source in each.sources] for each in cases.values() if each.window}
    assert all(cases[BEYOND.format(size)].window == size for size in found)
    return found


@pytest.mark.parametrize(
    ("windows", "drawn", "tried"),
    [
        ((4, 512), [512], [512]),
        ((1024,), [1024], [1024]),  # that of Gemma 3
        ((1025,), [1025], []),
        ((4, 2000), [4, 2000], [4]),
        ((128, 4096), [128], [128]),  # no sequence is longer than the other
        ((128, 4090), [128], [128]),
        ((4090,), [], []),
    ],
)
def test_a_huge_model_is_tried_beyond_its_windows_where_that_can_be_waited_for(
    windows: tuple[int, ...], drawn: list[int], tried: list[int]
) -> None:
    cases = cases_of(windowed(*windows, longest=4096))
    assert beyond_windows(cases) == {size: [size + 9] for size in drawn}
    kept, left_out = lightest([*cases.values()])
    assert [case.window for case in kept if case.window] == tried
    for size in drawn:
        assert (BEYOND.format(size) in left_out[0]) == (size not in tried)
        assert (BEYOND.format(size) in left_out[1]) == (size in tried)


def test_without_windows_no_case_goes_beyond_them() -> None:
    assert not beyond_windows(cases_of(windowed(0, longest=64)))
    assert not beyond_windows(cases_of(windowed(60, longest=64)))


def test_windows_that_nothing_goes_beyond_are_named() -> None:
    assert "beyond windows" not in str(not_reached(windowed(4, LONG - 1, longest=4 * LONG)))
    found = not_reached(windowed(4, LONG, 2 * LONG, 4 * LONG, longest=4 * LONG))
    assert found[1:] == [f"what is beyond windows of {LONG} and {2 * LONG} tokens"]


@pytest.mark.parametrize("longest", [LONG, LONG + 1, 1 << 20])
def test_no_case_is_longer_than_memory_allows(longest: int) -> None:
    facts = windowed(4, longest=longest)
    most = max(len(source) + sum(case.steps) for case in cases_of(facts).values() for source in case.sources)
    assert most == LONG
    assert bool(not_reached(facts)) == (longest > LONG)


def test_goldens_go_beyond_windows_where_that_can_be_waited_for() -> None:
    usual = Size(8)
    assert _lengths(windowed(512, 0, longest=4096), usual) == (*DRAWN, 517)
    assert _lengths(windowed(512, 0, longest=4096), LEAST) == LEAST.drawn
    assert _lengths(windowed(1024, longest=4096), usual) == (*DRAWN, 1029)
    assert _lengths(windowed(2000, longest=8192), usual) == DRAWN
    assert _lengths(windowed(512, 2000, longest=8192), usual) == (*DRAWN, 517)  # the largest that is waited for
    assert _lengths(windowed(128, 4096, longest=4096), usual) == (*DRAWN, 133)
    assert _lengths(windowed(4, longest=64), usual) == DRAWN  # which are longer already
    assert _lengths(windowed(512, longest=600), usual) == DRAWN  # no prompt may be so long


class Shapes(TableRuntime):
    """The places of each batch of sources that it is given."""

    def __init__(self) -> None:
        super().__init__(lambda source, prefix: np.cos(np.arange(9) * (1.0 + sum(source) + 3 * sum(prefix))))
        self.seen: list[tuple[int, int]] = []

    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> TableState:
        self.seen.append(source.shape)
        return super().start(source, source_lengths, max_length=max_length)


def test_short_sources_are_searched_from_together_and_none_is_as_long_as_a_long_one() -> None:
    facts = tiny_facts(max_length=400)
    draw = Draw(facts, np.random.default_rng(0))
    lengths = {"a": (3, 5), "long": (400, 2), "b": (96,), "other": (97,), "none": (4,)}
    cases = [Case(name, draw.sources(*each), (), search_tokens=7 * (name != "none")) for name, each in lengths.items()]
    runtime = Shapes()
    together = search_together(cases, runtime, facts)
    assert sorted(set(runtime.seen)) == [(1, 97), (2, 400), (3, 96)]
    assert together == {case.name: search_all(case, Shapes(), facts) for case in cases}


def test_a_large_model_is_tried_by_few_sources_of_features_and_says_so() -> None:
    """All have one length; two tell whether rows mix."""
    features = [np.zeros((4, 8), np.float32)] * 4
    targets = ((5,), (6, 7), (8,), (9,))
    cases = [Case("one row", features[:1], (1,), targets[:1]), Case("padded rows", features, (1,), targets)]
    lighter, left_out = lighten(cases)
    assert [(len(case.sources), len(case.targets)) for case in lighter] == [(1, 1), (FEW_SOURCES, FEW_SOURCES)]
    assert f"batches of more than {FEW_SOURCES} sources of features" in left_out
    tokens = [Case("padded rows", [[1, 2]] * 4, (1,), targets)]
    assert len(lighten(tokens)[0][0].sources) == 4
