"""What CI reads says the same as the verdict."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.errors import ParityError
from txport.proof.bisect.culprit import Culprit
from txport.proof.parity.check import check
from txport.proof.parity.measures import GRAPH, WEIGHTS
from txport.proof.parity.quality import Quality
from txport.proof.reports import render
from txport.proof.reports.report import Broken, Report
from txport.system.markdown import code


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Checkpoint:
    return load_checkpoint(str(checkpoint))


@pytest.fixture(scope="module")
def report(bundle: Bundle, loaded: Checkpoint) -> Report:
    return check(bundle, loaded, {"ort": "cpu"}, cases=2)


@pytest.fixture
def failed(report: Report) -> Report:
    """A report with a tensor, a search and an error rate that are wrong."""
    at = next(number for number, each in enumerate(report.tensors) if each.kind == GRAPH and each.tensor == "logits")
    tensors = [*report.tensors]
    tensors[at] = replace(tensors[at], max_abs=0.5)
    wrong = replace(report.tokens[0], equal=0, wrong={"row": 0, "expected": (4,), "actual": (5,)})
    quality = [Quality("ort", 100, "exact", True, 30.0, 20.0, 30, 20, 10, 0, 10, 0.1)]
    return replace(report, tensors=tensors, tokens=[wrong, *report.tokens[1:]], quality=quality, drift=["a \x00 drift"])


def suites(report: Report) -> Iterator[ET.Element]:
    root = ET.fromstring(render.junit(report, 1.5))  # noqa: S314 - we wrote it
    assert (root.tag, root.get("time")) == ("testsuites", "1.500")
    for counted, element in [(root.findall(".//testcase"), root), *((each.findall("testcase"), each) for each in root)]:
        assert int(element.get("tests", "")) == len(counted)
        assert int(element.get("failures", "")) == sum(each.find("failure") is not None for each in counted)
        assert int(element.get("skipped", "")) == sum(each.find("skipped") is not None for each in counted)
        assert element.get("errors") == "0"
    return iter(root)


def test_junit_has_a_suite_a_runtime_and_a_test_for_each_tensor_and_search_of_each_case(report: Report) -> None:
    found = {suite.get("name"): suite for suite in suites(report)}
    assert set(found) == {WEIGHTS, "ort", "quality"}
    names = [(each.get("classname"), each.get("name")) for each in found["ort"].findall("testcase")]
    assert len(names) == len(set(names))
    cases = {each.case for each in report.tensors} - {WEIGHTS}
    assert {"random 1", "random 2"} <= cases
    for case in cases:
        tests = {name for group, name in names if group == f"ort.{case}"}
        assert tests >= {"logits", "logits (teacher-forced)", "last_hidden_state", "greedy", "beam 4"}
    properties = {each.get("name"): each.get("value") for each in found["ort"].findall("properties/property")}
    assert properties["seed"] == "0"
    assert "CPUExecutionProvider" in str(properties["ran"])
    skipped = found["quality"].find("testcase/skipped")
    assert skipped is not None
    assert "not measured" in str(skipped.get("message"))


def test_a_culprit_fails_a_report_that_passes_otherwise(report: Report) -> None:
    """In few bits, a part can be wrong by less than rounding."""
    sound = replace(report, bisected=True)
    assert sound.passed
    assert sound.to_dict()["culprit"] is None
    wrong = replace(sound, culprit=Culprit("step", "decoder layer 2, self-attention", "scale", "scores are scaled"))
    line = "decoder layer 2, self-attention: scores are scaled (scale)"
    assert (wrong.verdict, wrong.describe_worst(), wrong.failures()) == ("fail", line, [line])
    assert wrong.to_dict()["culprit"]["kind"] == "scale"
    assert line in render.markdown(wrong)
    found = {suite.get("name"): suite.findall("testcase/failure") for suite in suites(wrong)}
    assert [each.get("message") for each in found["bisect"]] == [line]
    assert [each.get("message") for suite in suites(sound) for each in suite.findall("testcase/failure")] == []


def test_junit_holds_every_failure_with_its_line(failed: Report) -> None:
    failed = replace(failed, beyond=["a limit"])
    messages = {
        suite.get("name"): [each.get("message") for each in suite.findall("testcase/failure")]
        for suite in suites(failed)
    }
    assert messages[WEIGHTS] == []
    assert len(messages["ort"]) == 2
    assert any("logits" in str(each) and "difference 0.5" in str(each) for each in messages["ort"])
    assert any("greedy tokens differ" in str(each) for each in messages["ort"])
    assert messages["quality"] == [
        "ort: 30.00 % of 100 texts wrong, PyTorch 20.00 % (10 broken, 0 mended, allowed +0.10 %)"
    ]
    assert messages["baseline"] == ["a \\x00 drift"]  # XML can't hold a NUL
    assert messages["limits"] == ["a limit"]
    assert failed.to_dict()["beyond"] == ["a limit"]


def test_markdown_says_the_verdict_the_worst_first(report: Report, failed: Report) -> None:
    assert render.markdown(report).startswith("### txport parity: pass\n")
    assert "Quality: not measured" in render.markdown(report)
    lines = render.markdown(failed).splitlines()
    assert lines[0] == "### txport parity: FAIL"
    body = [line for line in lines if line.startswith("| ")]
    assert body[1].endswith("| FAIL |")
    assert "4 failed:" in lines
    assert sum(line.startswith("- `") for line in lines) == 4


def test_failures_are_all_named_the_worst_first(failed: Report) -> None:
    assert failed.failures()[0] == failed.describe_worst()
    assert len(failed.failures()) == 4
    only = replace(failed, tensors=[each for each in failed.tensors if each.passed], tokens=[], quality=[])
    assert only.describe_worst() == "a \x00 drift"


def test_what_ran_is_asked_of_the_session(report: Report, bundle: Bundle) -> None:
    ran = report.about["ran"]["ort"]
    assert set(ran) == set(bundle.manifest.graphs)
    assert all(
        set(counts) == {"CPUExecutionProvider"} and counts["CPUExecutionProvider"] > 5 for counts in ran.values()
    )


def test_the_report_says_what_it_was_made_with(report: Report, bundle: Bundle) -> None:
    values = report.to_dict()
    assert values["files"] == bundle.manifest.files
    assert values["tolerances"]["ort"]["largest"] == 2e-6
    assert values["tolerances"]["ort"]["reason"]
    assert values["quality"] == "not measured"
    logits = [each for case in values["cases"] for each in case["tensors"] if each["tensor"] == "logits"]
    assert all(each["argmax"] >= 0.9 and each["top10"] >= 0.9 and each["ulps"] >= 0 for each in logits)
    assert all(each["cosine"] > 0.999999 and float(each["sqnr"]) > 80 for each in logits)
    assert np.mean([each["mean_abs"] <= each["max_abs"] for each in logits]) == 1


def test_names_of_others_are_no_markup(report: Report) -> None:
    evil = "<img src=x>|`[a](b) \x1b[31m\nnext"
    named = replace(report, about={**report.about, "checkpoint": {**report.about["checkpoint"], "name": evil}})
    for text in (render.markdown(replace(named, drift=[evil])), render.markdown(Broken(ParityError(evil)))):
        assert not re.search(r"(?<!\\)<img|\x1b|^next", re.sub(r"(`+) ?.*?\1", "", text), re.MULTILINE)
        assert "\x1b" not in text
    assert "toy" not in render.markdown(named).partition("\n|")[0]


@pytest.mark.parametrize(("text", "written"), [("a", "`a`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("", "``")])
def test_code_is_code_whatever_is_in_it(text: str, written: str) -> None:
    assert code(text) == written
