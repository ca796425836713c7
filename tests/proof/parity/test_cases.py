from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fakes import TableRuntime, TableState
from tests.tiny import tiny_facts
from txport.audio.spectrogram import drawn_features
from txport.bench import measure as bench
from txport.models.architectures import gpt2, llama
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.proof.parity.cases import (
    BEYOND,
    FEW_SOURCES,
    LEAST_REACH,
    MOST_LOGITS,
    REACH,
    Case,
    Draw,
    _long_prompts,
    draw_cases,
    lighten,
    not_reached,
    reach_of,
)
from txport.proof.parity.tokens import search_all, search_together
from txport.proof.verify.golden import DRAWN, Size, _lengths
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


@pytest.mark.parametrize(
    ("windows", "longest", "beyond"),
    [
        ((4,), 64, 4),
        ((512, 0), 4096, 512),
        ((512, 2000), 8192, 512),
        ((2000,), 8192, None),
        ((0,), 64, None),
        ((60,), 64, None),
    ],
)
def test_a_prompt_exceeds_the_largest_window_that_whole_graphs_reach_beyond(
    windows: tuple[int, ...], longest: int, beyond: int | None
) -> None:
    cases = cases_of(windowed(*windows, longest=longest))
    found = {
        name: [len(source) for source in case.sources] for name, case in cases.items() if "beyond a window" in name
    }
    assert found == ({} if beyond is None else {BEYOND.format(beyond): [beyond + 9]})


@pytest.mark.parametrize("longest", [REACH, REACH + 1, 1 << 20])
def test_no_case_is_longer_than_whole_graphs_reach(longest: int) -> None:
    facts = windowed(4, longest=longest)
    most = max(len(source) + sum(case.steps) for case in cases_of(facts).values() for source in case.sources)
    assert most == REACH
    assert bool(not_reached(facts, by_part=True)) == (longest > REACH)


@pytest.mark.parametrize(("size", "reach"), [(9, REACH), (1 << 15, MOST_LOGITS >> 15), (1 << 22, LEAST_REACH)])
def test_logits_of_a_large_vocabulary_shorten_targets(size: int, reach: int) -> None:
    sizes = {"vocab_size": size, "d_model": 8, "heads": 2, "decoder_layers": 1}
    assert reach_of(llama.facts(llama.LlamaConfig(**sizes, max_length=4096)))[1] == reach
    facts = tiny_facts(max_length=3000, target_vocab_size=size, tied="none")
    assert reach_of(facts) == (REACH, reach)


def test_goldens_go_beyond_windows_where_that_can_be_waited_for() -> None:
    usual = Size(8)
    assert _lengths(windowed(512, 0, longest=4096), usual) == (*DRAWN, 517)
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
    """All have one length; two tell whether rows mix. They are those of the golden outputs, to be encoded once."""
    reads = Features(size=4, frames=8, longest=4, sampling_rate=8, hop_length=1, n_fft=2)
    facts = replace(tiny_facts(), source=reads)
    features = [np.zeros((4, 8), np.float32)] * 4
    targets = ((5,), (6, 7), (8,), (9,))
    cases = [Case(name, features, (1,), targets) for name in ("one row", "padded rows", "many rows")]
    cases[0] = replace(cases[0], sources=features[:1], targets=targets[:1])
    lighter, left_out = lighten(cases, facts)
    assert [(len(case.sources), len(case.targets)) for case in lighter] == [(1, 1), (FEW_SOURCES, FEW_SOURCES)]
    assert f"more than {FEW_SOURCES} different sources of features" in left_out
    assert "the case padded rows" in left_out
    for case in lighter:
        for number, source in enumerate(case.sources):
            np.testing.assert_array_equal(source, drawn_features(reads, number))
    tokens = [Case("padded rows", [[1, 2]] * 4, (1,), targets)]
    assert len(lighten(tokens, tiny_facts())[0][0].sources) == 4
