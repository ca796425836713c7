from __future__ import annotations

import numpy as np
import pytest

from tests.tiny import tiny_facts
from txport import bench
from txport.models.architectures import gpt2
from txport.proof.parity.cases import Draw, _long_prompts

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
