from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.tiny import tiny_facts
from txport import bench
from txport.models.architectures import gpt2, llama
from txport.models.facts import Facts
from txport.proof.parity.cases import BEYOND, LONG, Case, Draw, _long_prompts, draw_cases, lightest, not_reached
from txport.proof.verify.golden import DRAWN, LEAST, Size, _lengths

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


@pytest.mark.parametrize(("window", "is_tried"), [(512, True), (2000, False)])
def test_a_huge_model_is_tried_beyond_its_windows_where_that_can_be_waited_for(window: int, is_tried: bool) -> None:
    cases = cases_of(windowed(4, window, longest=4096))
    assert [len(source) for source in cases[BEYOND].sources] == [window + 9]
    kept, left_out = lightest([*cases.values()])
    assert (BEYOND in {case.name for case in kept}) == is_tried
    assert (BEYOND in left_out[0]) != is_tried


def test_without_windows_no_case_goes_beyond_them() -> None:
    assert BEYOND not in cases_of(windowed(0, longest=64))
    assert BEYOND not in cases_of(windowed(60, longest=64))


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
    assert _lengths(windowed(2000, longest=8192), usual) == DRAWN
    assert _lengths(windowed(4, longest=64), usual) == DRAWN  # which are longer already
    assert _lengths(windowed(512, longest=600), usual) == DRAWN  # no prompt may be so long
