"""A baseline finds what became worse, and only that."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import TextError, UnsupportedError
from txport.proof.parity.check import check
from txport.proof.reports.baseline import FACTOR, FLOOR, drift, read_baseline, summary

Json = dict[str, Any]


@pytest.fixture(scope="module")
def made(bundle: Bundle, checkpoint: Path) -> Json:
    values = check(bundle, load_checkpoint(str(checkpoint)), {"ort": "cpu"}).to_dict()
    parsed: Json = json.loads(json.dumps(values))
    for case in parsed["cases"]:
        for each in case["tensors"]:
            each["badness"] = 0.05
    return parsed


@pytest.fixture
def new(made: Json) -> Json:
    return copy.deepcopy(made)


def case_of(report: Json, name: str) -> Json:
    return next(case for case in report["cases"] if case["case"] == name)


def test_nothing_drifts_from_itself(made: Json, new: Json) -> None:
    assert drift(made, new) == []


def test_a_summary_is_small_and_compares_as_the_report(made: Json, new: Json) -> None:
    small = json.loads(json.dumps(summary(made)))
    assert summary(small) == small
    assert len(json.dumps(small)) < len(json.dumps(made)) / 10
    for case in new["cases"]:
        for each in case["tensors"][:2]:
            each["badness"] = 0.5
        for each in case["tokens"][:1]:
            each["equal"] -= 1
    weights = case_of(new, "weights")["tensors"][-1]
    weights["badness"] = 0.5
    new["cases"].pop()
    lines = drift(made, new)
    assert len(lines) > 5
    assert any(f"{weights['tensor']} (weights) uses 50 %" in line for line in lines)
    assert drift(small, new) == drift(small, summary(new)) == lines


@pytest.mark.parametrize(
    ("before", "after", "drifts"),
    [
        (0.05, 0.05 * FACTOR + 0.01, True),
        (0.05, 0.05 * FACTOR - 0.01, False),
        (0.001, FLOOR - 0.01, False),  # many times as much, and yet nothing
        (0.001, FLOOR + 0.01, True),
        (0.0, FLOOR + 0.01, True),
        (0.9, 0.99, False),
        (0.05, "nan", True),
        (0.05, "inf", True),
    ],
)
def test_a_tensor_drifts_by_a_factor_above_a_floor(
    made: Json, new: Json, before: float, after: Any, drifts: bool
) -> None:
    old = copy.deepcopy(made)
    for report, value in ((old, before), (new, after)):
        for each in case_of(report, "longest")["tensors"]:
            if each["tensor"] == "logits" and each["kind"] == "graph":
                each["badness"] = value
    found = drift(old, new)
    assert bool(found) == drifts
    assert all(line.startswith("ort, case longest: logits (graph) uses") for line in found)


def test_the_worst_step_counts_whichever_it_is(made: Json, new: Json) -> None:
    steps = [each for each in case_of(new, "longest")["tensors"] if each["kind"] == "teacher-forced"]
    old = copy.deepcopy(new)
    steps[3]["badness"] = 0.3
    next(each for each in case_of(old, "longest")["tensors"] if each["kind"] == "teacher-forced")["badness"] = 0.29
    assert drift(old, new) == []


def test_rows_that_become_near_ties_drift(made: Json, new: Json) -> None:
    tokens = case_of(new, "real")["tokens"][0]
    tokens["equal"] = tokens["equal"] - 1
    tokens["near_ties"] = 1
    assert drift(made, new) == ["ort, case real: greedy finds 3 of 4 rows equal, in the baseline 4 of 4"]
    assert drift(new, made) == []  # better is no drift


@pytest.mark.parametrize("part", ["tensors", "tokens"])
def test_what_is_no_longer_compared_drifts(made: Json, new: Json, part: str) -> None:
    del case_of(new, "real")[part][-1]
    new["cases"] = [case for case in new["cases"] if case["case"] != "length 1"]
    found = drift(made, new)
    assert any("case length 1" in line for line in found)
    assert all(line.endswith("was compared in the baseline and is no longer") for line in found)
    assert drift(new, made) == []  # more is no drift


def test_an_error_rate_drifts_on_the_same_texts_only(made: Json, new: Json) -> None:
    old = copy.deepcopy(made)
    old |= {"texts": "ab", "quality": [{"runtime": "ort", "rate": 20.0}]}
    assert drift(old, new) == ["error rates are no longer measured"]
    new |= {"texts": "ab", "quality": [{"runtime": "ort", "rate": 20.2}]}
    assert drift(old, new) == ["ort: error rate 20.20 %, in the baseline 20.00 %"]
    assert drift({**old, "texts": "cd"}, new) == []
    assert drift(new, old) == []


def test_a_score_drifts_in_its_direction_by_the_same_metric(made: Json, new: Json) -> None:
    def report(rate: float, metric: str, lower_is_better: bool) -> Json:
        score = {"runtime": "ort", "rate": rate, "metric": metric, "lower_is_better": lower_is_better}
        return {**copy.deepcopy(made), "texts": "ab", "quality": [score]}

    high, low = report(30.0, "bleu", False), report(29.0, "bleu", False)
    assert drift(high, low) == ["ort: bleu 29.00, in the baseline 30.00"]
    assert drift(low, high) == []
    assert drift(report(29.0, "wer", True), report(30.0, "wer", True)) == ["ort: wer 30.00, in the baseline 29.00"]
    assert drift(high, report(30.0, "chrf", False)) == ["ort: bleu was measured in the baseline and is no longer"]


def change(**values: Any) -> Callable[[Json], None]:
    return lambda report: report.update(values)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (
            change(checkpoint={"name": "other", "sha256": "0" * 64}),
            "is of another checkpoint: toy .*, this is other 0000",
        ),
        (change(precision="fp16"), "another setting: precision 'fp32', now 'fp16'"),
        (change(target="cpu"), "target 'portable', now 'cpu'"),
        (change(providers={"ort": "cuda"}), "providers"),
        (change(seed=1), "seed 0, now 1"),
        (change(random_cases=5), "random cases 0, now 5"),
        (change(tolerances={"ort": {"largest": 2e-6, "atol": 1e-6}}), "other tolerances: atol of ort None, now 1e-06"),
    ],
)
def test_a_baseline_of_something_else_is_refused(
    made: Json, new: Json, alter: Callable[[Json], None], message: str
) -> None:
    alter(new)
    with pytest.raises(UnsupportedError, match=message):
        drift(made, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "holds a list, expected an object"),
        ('{"verdict": "pass"}', "is not a baseline"),
        ('{"format": 1}', "is not a baseline"),
        ('{"format": 2}', "is a report of format 2, this txport reads format 1; write it again"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(TextError, match=message):
        read_baseline(file)
    with pytest.raises(TextError, match=r"missing\.json is missing"):
        read_baseline(tmp_path / "missing.json")


def test_a_report_is_read_back(made: Json, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(made))
    assert read_baseline(file) == made
