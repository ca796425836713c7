"""Verdicts on two reports: a slow-down is found, the same code passes, and noise gives no verdict."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from txport.bench import compare
from txport.bench.others import Others
from txport.bench.plan import Plan
from txport.bundles.bundle import Bundle
from txport.cli.commands import cli
from txport.errors import TextError, UnavailableError, UnsupportedError

PLAN = Plan(batch=(1,), scenario=("phases",), rounds=30, starts=10)
TIMES = {"encode": 2.0, "further token": 0.5, "tokens": 900.0}
TRIALS = 20
TURNS = [turn for turn in range(PLAN.starts) for _ in range(3)]


def report(seed: int, *, slower: float = 1.0, noise: float = 0.008, drift: float = 1.0, two: bool = False) -> Any:
    """A report whose samples have log-normal noise; `drift` is the speed of the machine, `slower` that of ort."""
    rng = np.random.default_rng(seed)
    figures: dict[str, Any] = {}
    machine = drift * np.exp(rng.normal(0, 0.05, PLAN.rounds))  # of each round, the same for all that runs in it
    for label in ("torch", "ort") if two else ("ort",):
        figures[label] = {"peak memory": {"samples": [100.0]}}
        for phase, usual in TIMES.items():
            costs = machine * np.exp(rng.normal(0, noise, PLAN.rounds)) * (slower if label == "ort" else 1)
            values = usual / costs if phase in compare.RATES else usual * costs
            figures[label][phase] = {"samples": values.tolist()}
    size = {
        "batch": 1,
        "beams": 1,
        "source": 16,
        "tokens": 16,
        "yardstick": machine.tolist(),
        "turns": TURNS,
        "figures": figures,
    }
    candidates = {label: {} for label in figures}
    about = {"format": compare.FORMAT, "machine": {"cpu": "one"}, "plan": compare.plan_of(PLAN), "busy rounds": 0}
    return {**about, "candidates": candidates, "sizes": [size]}


@pytest.mark.parametrize("two", [False, True])
def test_a_slow_down_is_found_and_the_same_code_passes(two: bool) -> None:
    for seed in range(TRIALS):
        old = report(seed, two=two)
        slower = compare.verdicts(old, report(seed + 100, slower=1.15, drift=1.1, two=two), 10)
        assert [each.is_worse for each in slower] == 3 * [True]
        same = compare.verdicts(old, report(seed + 200, drift=0.9, two=two), 10)
        assert [(each.is_clear, each.is_worse) for each in same] == 3 * [(True, False)]
        faster = compare.verdicts(old, report(seed + 300, slower=0.5, two=two), 10)
        assert [(each.is_clear, each.is_worse) for each in faster] == 3 * [(True, False)]


def test_noise_gives_no_false_verdict() -> None:
    unclear = 0
    for seed in range(TRIALS):
        old = report(seed, noise=0.25)
        slower = compare.verdicts(old, report(seed + 100, slower=1.15, noise=0.25), 10)
        same = compare.verdicts(old, report(seed + 200, noise=0.25), 10)
        assert not any(each.is_worse for each in same)
        assert all(each.is_worse or not each.is_clear for each in slower)
        unclear += sum(not each.is_clear for each in (*same, *slower))
    assert unclear > TRIALS


def test_the_interval_of_a_mean_holds_it_in_99_of_100_samples() -> None:
    rng = np.random.default_rng(0)
    for size in (5, 7, 15, 50):
        samples = rng.normal(0, 1, (1000, size))
        missed = sum(abs(np.mean(each)) > compare.half_width(each) for each in samples)
        assert missed <= 30, size
    assert compare.half_width(np.zeros(4)) == math.inf


def test_busy_rounds_give_no_verdict() -> None:
    quiet, busy = report(1), report(2)
    busy["busy rounds"] = 4
    assert compare.noise(quiet, quiet) is None
    assert compare.noise(quiet, busy) == "other programs used the processor in 4 rounds of this one"
    assert "in 4 rounds of the older report" in str(compare.noise(busy, quiet))


def test_reports_that_were_measured_otherwise_are_not_compared() -> None:
    old = report(1)
    plan = {**compare.plan_of(PLAN), "batch": [3]}
    with pytest.raises(UnsupportedError, match="another plan"):
        compare.require_same(old, plan, ["ort"])
    with pytest.raises(UnsupportedError, match="other candidates"):
        compare.require_same(old, old["plan"], ["torch", "ort"])
    with pytest.raises(UnsupportedError, match="add the scenario phases"):
        compare.require_same(old, {**old["plan"], "scenario": ["single"]}, ["ort"])
    short = {**old["plan"], "starts": 4}
    with pytest.raises(UnsupportedError, match="at least 5 rounds and 5 starts; measure more of them"):
        compare.require_same({**old, "plan": short}, short, ["ort"])
    elsewhere = {**report(2), "machine": {"cpu": "another"}}
    with pytest.raises(UnsupportedError, match="of another machine"):
        compare.verdicts(old, elsewhere, 10)
    both = report(1, two=True), {**report(2, two=True), "machine": {"cpu": "another"}}
    assert compare.verdicts(*both, 10), "ratios of two candidates are compared between machines"


@pytest.mark.parametrize("damage", ["", [], {}, {"encode": None}, None, {"encode": {"samples": [0.0]}}])
def test_a_report_without_samples_is_refused(damage: Any, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    old = copy.deepcopy(report(1))
    old["sizes"][0]["figures"]["ort"] = damage
    file.write_text(json.dumps(old), encoding="utf-8")
    if damage == {}:  # nothing was timed
        with pytest.raises(UnsupportedError, match="only one of the reports has ort, batch 1, "):
            compare.verdicts(compare.read_report(file), report(2), 10)
        return
    with pytest.raises(TextError, match="is not a report of"):
        compare.read_report(file)


def test_a_report_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**report(1), "format": 1}), encoding="utf-8")
    with pytest.raises(TextError, match="of another format; this txport reads format 3: measure it again"):
        compare.read_report(file)


def test_verdicts_are_exit_codes(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow-down exits with 1, what can't be judged with 3."""
    old, new = tmp_path / "old.json", report(7)
    old.write_text(json.dumps(report(1)), encoding="utf-8")
    given = [
        "bench",
        str(bundle.path),
        "--runtime",
        "ort",
        "--batch",
        "1",
        "--scenario",
        "phases",
        "--rounds",
        "30",
        "--starts",
        "10",
    ]
    monkeypatch.setattr("txport.bench.measure.run", lambda *_, **__: new)
    monkeypatch.setattr("txport.cli.tables.show_bench", lambda _: None)

    def compared() -> Any:
        return CliRunner().invoke(cli, [*given, "--compare", str(old), "--max-regression", "10%"])

    found = compared()
    assert (found.exit_code, found.output.startswith("verdict: pass; the largest of 3 changes is that of ort")) == (
        0,
        True,
    )
    new = report(7, slower=1.15)
    found = compared()
    assert found.exit_code == 1
    assert found.output.endswith("verdict: slower in 3 of 3 figures\n")
    new["busy rounds"] = 2
    assert isinstance(compared().exception, UnavailableError)
    new = report(7, noise=0.3)
    assert str(compared().exception).startswith("too noisy to tell: ")


def test_the_time_of_other_programs_is_counted_and_that_of_candidates_is_not() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    with spinning:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        both = Others([]), Others([spinning.pid])
        time.sleep(0.5)
        every, others = (each.cores() for each in both)
        spinning.kill()
    if every is None or others is None:
        pytest.skip("processor time of others is counted on Linux")
    assert every > others
