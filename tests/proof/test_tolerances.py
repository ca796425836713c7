"""One table of tolerances, each with its reason, that users may tighten and not loosen."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txport.models.bundle import PRECISIONS
from txport.models.errors import UnsupportedError
from txport.proof.measures import compare
from txport.proof.tolerances import TABLE, tolerance_of

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
ONES = np.ones(3, np.float32)


def test_every_precision_has_a_line_for_every_provider_and_every_line_a_reason() -> None:
    for precision in PRECISIONS:
        for provider in ("cpu", "cuda", "tensorrt", "CoreMLExecutionProvider"):
            assert tolerance_of(precision, provider).precision == precision
    assert all(len(line.reason) > 30 for line in TABLE)


def test_fp32_means_fp32_everywhere() -> None:
    large = np.full(3, 1e6, np.float32)
    assert {line.allowed(large) for line in TABLE if line.precision == "fp32"} == {1e-4}


@given(
    st.sampled_from(TABLE),
    st.none() | st.floats(1e-9, 1e-4),
    st.none() | st.floats(1e-9, 1e-4),
    st.floats(0, 1e4),
)
def test_what_the_user_gives_only_tightens(line: object, atol: float | None, rtol: float | None, top: float) -> None:
    base = tolerance_of(line.precision, line.provider)  # type: ignore[attr-defined]
    tight = base.tightened(atol, rtol)
    values = np.array([0.0, -top])
    assert tight.allowed(values) <= base.allowed(values)
    assert tight.allowed_rms is None or tight.allowed_rms <= base.allowed_rms
    assert atol is None or tight.allowed(values) <= atol + (rtol or 0) * top


@pytest.mark.parametrize(
    ("precision", "options", "own_error", "passes"),
    [
        ("fp16", {}, 0.02, True),
        ("fp16", {}, 0.01, False),
        ("fp16", {}, 0.0, False),
        ("fp16", {}, math.nan, False),
        ("fp16", {}, math.inf, False),
        ("fp16", {"rtol": 0.01}, 0.02, False),
        ("fp32", {}, 1.0, False),
        ("int8", {"atol": 0.01}, 1.0, False),
    ],
)
def test_fp16_may_be_twice_as_wrong_as_pytorch_itself(
    precision: str, options: dict[str, float], own_error: float, passes: bool
) -> None:
    tolerance = tolerance_of(precision, **options)
    wrong = ONES + np.float32(0.035)
    found = compare("case", "ort", 0, "x", ONES, wrong, tolerance.allowed(ONES), rms=tolerance.allowed_rms)
    assert not found.passed
    judged = tolerance.judge(found, lambda: own_error)
    assert judged.passed == passes
    assert passes or judged == found


def test_what_passes_is_not_computed_again() -> None:
    found = compare("case", "ort", 0, "x", ONES, ONES, 2e-2)
    assert tolerance_of("fp16").judge(found, lambda: pytest.fail("it passed")) is found


@pytest.mark.parametrize(
    ("precision", "options", "message"),
    [
        (
            "fp32",
            {"atol": 1e-3},
            r"--atol 0.001 allows more than 0.0001, the most for fp32 on cpu \(rounding in another order",
        ),
        ("fp32", {"rtol": 1e-3}, "--rtol 0.001 allows more than 0.0001"),
        ("fp16", {"atol": 3e-2}, "--atol 0.03 allows more than 0.02"),
        ("int8", {"rtol": 0.2}, "--rtol 0.2 allows more than 0.15"),
        ("fp32", {"atol": 0.0}, "--atol must be positive, got 0"),
        ("fp32", {"atol": math.nan}, "--atol must be positive, got nan"),
    ],
)
def test_loosening_is_refused_with_the_reason(precision: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        tolerance_of(precision, **options)


def test_rtol_counts_for_the_rms_where_that_is_what_counts() -> None:
    tight = tolerance_of("int8", rtol=0.05)
    assert tight.allowed_rms == tight.allowed_place == 0.05
    assert tight.allowed(ONES) == math.inf
    assert tolerance_of("int8", atol=0.2).allowed(ONES) == 0.2


def test_the_page_holds_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in TABLE:
        row = next(row for row in page.splitlines() if row.startswith(f"| {line.precision} | {line.provider} |"))
        assert f"{line.rms:.0%}" in row if line.rms else f"| {line.largest:g}" in row
        assert line.reason in row
        assert line.place is None or f"{line.place:.0%}" in row
