from __future__ import annotations

import numpy as np
import pytest

from tests.tiny import tiny_facts
from txport import bench
from txport.proof.parity.cases import Draw

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
