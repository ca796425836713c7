"""Each measure means what people take it to mean."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from txport.proof.parity.measures import Comparison, compare, to_dict, ulps
from txport.system.terminal import percent
from txport.targets.ports import LOGITS

Array = NDArray[Any]
FLOATS = st.floats(-1e6, 1e6, width=32)


def measured(expected: Array, actual: Array, tensor: str = "x", **options: Any) -> Comparison:
    return compare("case", "ort", 0, tensor, expected, actual, 1e-4, **options)


@given(arrays(np.float32, (3, 4), elements=FLOATS))
def test_a_tensor_is_equal_to_itself(values: Array) -> None:
    found = measured(values, values.copy(), LOGITS)
    assert found.passed
    assert (found.max_abs, found.mean_abs, found.of_largest, found.relative, found.ulps) == (0, 0, 0, 0, 0)
    assert found.cosine == pytest.approx(1)
    assert (found.sqnr, found.argmax, found.top10) == (math.inf, 1, 1)


@given(arrays(np.float32, 5, elements=FLOATS), st.integers(0, 4), st.integers(1, 1000))
def test_ulps_count_the_numbers_between(values: Array, at: int, count: int) -> None:
    moved = values.copy()
    for _ in range(count % 17):
        moved[at] = np.nextafter(moved[at], np.float32(np.inf))
    assert ulps(values, moved) == count % 17
    assert ulps(moved, values) == count % 17


def test_ulps_cross_zero_and_are_for_fp32_only() -> None:
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert ulps(np.array([-tiny]), np.array([tiny])) == 2
    assert ulps(np.array([0.0], np.float32), np.array([-0.0], np.float32)) == 0
    assert ulps(np.array([1.0], np.float16), np.array([1.0], np.float16)) is None
    assert ulps(np.array([1.0], np.float32), np.array([np.nan], np.float32)) is None


def test_distances_are_those_of_the_books() -> None:
    found = measured(np.array([3.0, -4.0], np.float32), np.array([3.0, -3.5], np.float32))
    assert (found.max_abs, found.mean_abs, found.of_largest) == (0.5, 0.25, 0.125)
    assert found.relative == pytest.approx(0.1)
    assert found.sqnr == pytest.approx(20)
    assert found.cosine == pytest.approx((9 + 14) / (5 * math.hypot(3, 3.5)))
    assert measured(-np.ones(3, np.float32), np.ones(3, np.float32)).cosine == pytest.approx(-1)


def test_agreement_on_the_best_tokens() -> None:
    logits = np.tile(np.arange(40, dtype=np.float32), (2, 3, 1))
    other = logits.copy()
    other[0, 0] = other[0, 0, ::-1]  # one of six rows prefers the very others
    found = measured(logits, other, LOGITS)
    assert found.argmax == found.top10 == pytest.approx(5 / 6)
    assert measured(logits, other).argmax is None


@given(st.sampled_from([math.nan, math.inf, -math.inf, 3e38]), st.integers(0, 3))
def test_what_is_no_number_fails_and_makes_no_warning(value: float, at: int) -> None:
    expected = np.ones(4, np.float32)
    actual = np.ones(4, np.float32)
    actual[at] = value
    for rms in (None, 0.15):
        found = measured(expected, actual, rms=rms)
        assert not found.passed
        assert found.index == (at,)
        assert json.loads(json.dumps(to_dict(found), allow_nan=False))["passed"] is False


def test_what_is_copied_hides_no_error_in_what_is_new() -> None:
    expected = np.ones((4, 512), np.float32)
    new = np.zeros(expected.shape, bool)
    new[:, 7] = True
    wrong = expected.copy()
    moved = expected.copy()
    wrong[:, 7] = -1
    moved[:, 100] = -1
    for actual in (wrong, moved):
        assert compare("case", "ort", 0, "x", expected, actual, math.inf, rms=0.15).passed
        found = compare("case", "ort", 0, "x", expected, actual, math.inf, rms=0.15, over=new)
        assert (found.passed, found.relative) == (False, 2.0)
    assert compare("case", "ort", 0, "x", expected, expected.copy(), math.inf, rms=0.15, over=new).passed


def test_the_error_of_what_is_nearly_nothing_counts_over_what_it_comes_from() -> None:
    expected = np.array([[0.1, -0.1]], np.float32)
    found = compare("case", "ort", 0, "x", expected, expected + np.float32(0.03), math.inf, rms=0.15)
    assert (found.passed, found.relative) == (False, pytest.approx(0.3))
    for least, passed in ((0.05, False), (1.0, True)):
        found = compare("case", "ort", 0, "x", expected, expected + np.float32(0.03), math.inf, rms=0.15, least=least)
        assert (found.passed, found.relative) == (passed, pytest.approx(0.03 / max(0.1, least)))


def test_one_row_that_is_wrong_is_not_hidden_by_the_others() -> None:
    expected = np.random.default_rng(0).standard_normal((12, 40)).astype(np.float32)
    actual = expected.copy()
    actual[5] = np.random.default_rng(1).standard_normal(40)
    assert measured_rms(expected, actual, by_row=False).passed
    assert not measured_rms(expected, actual, by_row=True).passed


def measured_rms(expected: Array, actual: Array, by_row: bool) -> Comparison:
    return compare("case", "ort", 0, "x", expected, actual, math.inf, rms=0.5, by_row=by_row)


def test_where_the_rms_counts_the_description_says_it() -> None:
    expected = np.ones(100, np.float32)
    actual = np.ones(100, np.float32)
    actual[0] = 1.9
    single = compare("case", "ort", 0, "x", expected, actual, math.inf, rms=0.15)
    assert single.passed  # one number may be far off
    every = compare("case", "ort", 3, "x", expected, expected * np.float32(1.2), math.inf, rms=0.15)
    assert not every.passed
    assert every.describe() == "ort, case case, step 3: x has an error of 20 % of its size, allowed are 15 %"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.247, "24.7 %"),
        (9.99, "999 %"),
        (10, "10 times"),
        (12345.6, "12,346 times"),
        (3e27, "3e+27 times"),
        (np.inf, "inf"),
    ],
)
def test_large_percentages_are_multiples(share: float, words: str) -> None:
    assert percent(share) == words
    assert percent(12.34, "its size") == "12.3 times its size"
    assert percent(0.1234, "its size") == "12.3 % of its size"
