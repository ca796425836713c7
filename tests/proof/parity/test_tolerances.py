"""One table of tolerances, each with its reason, that users may tighten and not loosen."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txport.bundles.manifest import PRECISIONS
from txport.errors import UnsupportedError
from txport.proof.parity.measures import compare
from txport.proof.parity.tolerances import TABLE, Tolerance, tolerance_of

PAGE = Path(__file__).parents[3] / "docs" / "parity.md"
ONES = np.ones(3, np.float32)


def test_every_precision_has_a_line_for_every_provider_and_every_line_a_reason() -> None:
    for precision in PRECISIONS:
        for provider in ("cpu", "cuda", "tensorrt", "CoreMLExecutionProvider"):
            assert tolerance_of(precision, provider).precision == precision
    assert all(len(line.reason) > 30 for line in TABLE)


def test_fp32_means_fp32_everywhere() -> None:
    """TF32 has 10 bits, bf16 7: half a unit in the last place of either is far more than is allowed."""
    lines = [line for line in TABLE if line.precision == "fp32"]
    assert {line.allowed(1.0, 0.0) for line in lines} == {2e-6}
    assert 2e-6 < 2.0**-11 / 200
    assert len({(line.own, line.noise, line.rounding) for line in lines}) == 1


@given(st.sampled_from(TABLE), st.floats(1e-6, 1e6), st.floats(0, 1e-3))
def test_what_is_allowed_is_relative(line: Tolerance, scale: float, own_error: float) -> None:
    """A model whose values are all so many times as large, errors too, may be off by as many times as much."""
    assert line.allowed(scale, scale * own_error) == pytest.approx(scale * line.allowed(1.0, own_error))
    assert line.noise_of(scale, scale * own_error) == pytest.approx(scale * line.noise_of(1.0, own_error))
    assert line.lasting_noise(scale, scale * own_error) == pytest.approx(scale * line.lasting_noise(1.0, own_error))


@given(
    st.sampled_from(TABLE),
    st.none() | st.floats(1e-9, 1e-4),
    st.none() | st.floats(1e-9, 1e-4),
    st.floats(0, 1e4),
    st.floats(0, 1.0),
)
def test_what_the_user_gives_only_tightens(
    line: Tolerance, atol: float | None, rtol: float | None, top: float, own_error: float
) -> None:
    base = tolerance_of(line.precision, line.provider)
    tight = base.tightened(atol, rtol)
    assert tight.allowed(top, own_error) <= base.allowed(top, own_error)
    assert tight.allowed_rms is None or tight.allowed_rms <= base.allowed_rms
    assert atol is None or tight.allowed(top, own_error) <= atol + (rtol or 0) * top


@pytest.mark.parametrize(
    ("precision", "options", "own_error", "passes"),
    [
        ("fp32", {}, 5e-3, True),
        ("fp32", {}, 4e-3, False),
        ("fp32", {}, 0.0, False),
        ("fp16", {}, 9e-3, True),
        ("fp16", {}, 8e-3, False),
        ("fp16", {}, math.nan, False),
        ("fp16", {}, math.inf, False),
        ("fp16", {"rtol": 0.03}, 0.02, False),
        ("int8", {"atol": 0.01}, 1.0, False),
    ],
)
def test_a_tensor_may_be_some_times_as_wrong_as_pytorch_itself(
    precision: str, options: dict[str, float], own_error: float, passes: bool
) -> None:
    tolerance = tolerance_of(precision, **options)
    wrong = ONES + np.float32(0.035)
    found = compare("case", "ort", 0, "x", ONES, wrong, tolerance.allowed(1.0), rms=tolerance.allowed_rms)
    assert found.passed == (precision == "int8" and not options)
    judged = tolerance.judge(found, 1.0, lambda draw: compare("case", "torch", 0, "x", ONES, ONES + own_error, 0.0))
    assert judged.passed == passes


def test_what_passes_is_not_computed_again() -> None:
    found = compare("case", "ort", 0, "x", ONES, ONES, 2e-2)
    assert tolerance_of("fp16").judge(found, 1.0, lambda draw: pytest.fail("it passed")) is found


@pytest.mark.parametrize(
    ("precision", "options", "message"),
    [
        (
            "fp32",
            {"rtol": 1e-3},
            r"rtol=0.001 allows more than 0.0001, the most for fp32 on cpu \(rounding in another",
        ),
        ("int8", {"rtol": 0.2}, "rtol=0.2 allows more than 0.15"),
        ("fp32", {"atol": 0.0}, "atol must be positive, got atol=0"),
        ("fp32", {"atol": math.nan}, "atol must be positive, got atol=nan"),
    ],
)
def test_loosening_is_refused_with_the_reason(precision: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        tolerance_of(precision, **options)


def test_the_loosest_that_the_page_names_is_taken() -> None:
    for precision, rtol in (("fp32", 1e-4), ("fp16", 0.2), ("bf16", 1.5), ("int8", 0.15)):
        assert tolerance_of(precision, rtol=rtol).rtol == rtol


def test_rtol_counts_for_the_rms_where_that_is_what_counts() -> None:
    tight = tolerance_of("int8", rtol=0.05)
    assert tight.allowed_rms == tight.allowed_place == 0.05
    assert tight.allowed(1.0) == math.inf
    assert tolerance_of("int8", atol=0.2).allowed(1.0) == 0.2


def test_the_page_holds_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in TABLE:
        row = next(row for row in page.splitlines() if row.startswith(f"| {line.precision} | {line.provider} |"))
        assert f"{line.rms:.0%}" in row if line.rms else f"| {line.largest:g}" in row
        assert line.reason in row
        assert line.place is None or f"{line.place:.0%}" in row
