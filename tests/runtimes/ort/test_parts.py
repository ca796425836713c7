"""Batches of an encoder run in parts, side by side: no row depends on the others, and no error is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.seeded import bundle_of, saved
from txport.errors import RunError
from txport.models.architectures.bert import BertConfig
from txport.runtimes.inputs import infer
from txport.runtimes.ort.parts import TOGETHER, TOKENS, Parts, parts_of
from txport.runtimes.ort.sessions import Sessions

SIZES = {"vocab_size": 50, "max_length": 300, "d_model": 64, "encoder_layers": 2, "heads": 4, "feed_forward": 128}
IDS = {"cls_id": 1, "sep_id": 2, "mask_id": 3}


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> txport.Model:
    """With two threads also on a machine with one core."""
    folder = tmp_path_factory.mktemp("encoder")
    checkpoint = saved(BertConfig(**SIZES, **IDS, head="pooled"), folder / "checkpoint")
    return txport.load(bundle_of(checkpoint, folder / "bundle", precision=request.param).path, threads=2)


lengths_of_batches = st.lists(st.integers(1, 40) | st.sampled_from([127, 128, 129, 300]), min_size=1, max_size=9)


@given(lengths=lengths_of_batches)
@settings(max_examples=15, deadline=None)
def test_a_row_is_the_same_alone(model: txport.Model, lengths: list[int]) -> None:
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 50, length).tolist() for length in lengths]
    together = infer(model.runtime, sources, model.facts)
    for source, found in zip(sources, together, strict=True):
        (alone,) = infer(model.runtime, [source], model.facts)
        for name, array in alone.items():
            np.testing.assert_array_equal(found[name], array)


@given(lengths=lengths_of_batches, threads=st.integers(1, 8))
def test_parts_hold_each_row_once(lengths: list[int], threads: int) -> None:
    parts = parts_of(np.array(lengths), threads)
    assert [row for rows, _ in parts for row in range(*rows.indices(len(lengths)))] == list(range(len(lengths)))
    assert len(parts) >= min(threads, len(lengths) // -(-len(lengths) // threads))
    for rows, width in parts:
        assert 0 <= width - max(lengths[rows]) < TOGETHER
        assert len(lengths[rows]) == 1 or len(lengths[rows]) * max(lengths[rows]) <= TOKENS


def test_an_error_of_one_part_is_raised_after_all() -> None:
    done: list[int] = []

    def compute(_: Sessions, rows: slice, width: int) -> None:
        done.append(rows.start)
        if rows.start == 1:
            raise RunError("the second part")

    with pytest.raises(RunError, match="the second part"):
        Parts(lambda: Sessions({}, {}), 2).run(compute, np.full(4, TOKENS))
    assert sorted(done) == [0, 1, 2, 3]
