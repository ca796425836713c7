"""Measuring: every phase of every runtime, in processes of their own, and regressions by ratio."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu.__main__ import gpu
from txport import runtimes
from txport.bench import measure as bench
from txport.bundles.bundle import Bundle
from txport.cli.commands import cli
from txport.cli.guard import run_guarded
from txport.errors import CheckpointError, TextError, UnsupportedError


@pytest.fixture(scope="module")
def result(bundle: Bundle, checkpoint: Path) -> dict[str, Any]:
    protocol = bench.Protocol(batch=2, beams=2, source=5, tokens=4, rounds=3, threads=1)
    return bench.run(bundle, str(checkpoint), ("torch", "ort"), protocol)


def test_every_phase_of_every_runtime_has_ordered_quartiles(result: dict[str, Any]) -> None:
    assert list(result["runtimes"]) == ["torch", "ort"]
    for phases in result["runtimes"].values():
        assert list(phases) == list(bench.UNITS)
        assert all(0 < each["q1"] <= each["median"] <= each["q3"] for each in phases.values())
    assert json.loads(json.dumps(result)) == result


def test_runtimes_generate_the_same_tokens_and_work_in_processes_of_their_own(result: dict[str, Any]) -> None:
    assert result["same_tokens"]
    memory = {name: phases["peak memory"]["median"] for name, phases in result["runtimes"].items()}
    assert memory["ort"] < memory["torch"], "a process that runs a bundle must not hold PyTorch"


def test_a_regression_is_told_by_ratio_to_the_first_runtime(result: dict[str, Any]) -> None:
    result = copy.deepcopy(result)
    busier = copy.deepcopy(result)
    slower = copy.deepcopy(result)
    for phases in (phases for report in (result, busier, slower) for phases in report["runtimes"].values()):
        for figure in phases.values():
            figure["q1"] = figure["q3"] = figure["median"]
    for phases in busier["runtimes"].values():
        phases["encode"] = {key: value * 3 for key, value in phases["encode"].items()}
    ort = slower["runtimes"]["ort"]
    ort["load"] = {key: value * 5 for key, value in ort["load"].items()}
    ort["encode"] = {key: value * 1.5 for key, value in ort["encode"].items()}
    ort["tokens"] = {key: value / 1.5 for key, value in ort["tokens"].items()}
    assert bench.regressions(result, busier, 10) == []
    assert [line.split(" is ")[0] for line in bench.regressions(result, slower, 10)] == ["ort: encode", "ort: tokens"]
    assert bench.regressions(result, slower, 60) == []
    result["runtimes"]["ort"]["encode"]["q3"] *= 2  # the older run was as slow at times
    assert [line.split(" is ")[0] for line in bench.regressions(result, slower, 10)] == ["ort: tokens"]


def test_reports_of_different_protocols_are_not_compared(result: dict[str, Any]) -> None:
    other = copy.deepcopy(result)
    other["protocol"]["batch"] = 3
    with pytest.raises(UnsupportedError, match="another protocol"):
        bench.regressions(result, other, 10)


@pytest.mark.parametrize("damage", ["", [], {}, {"load": None}, None])
def test_a_report_without_the_figures_that_are_compared_is_refused(
    damage: Any, result: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "old.json"
    for name in result["runtimes"]:
        old = copy.deepcopy(result)
        old["runtimes"][name] = damage
        file.write_text(json.dumps(old), encoding="utf-8")
        with pytest.raises((TextError, UnsupportedError), match=r"is not a report|the report has no"):
            bench.regressions(bench.read_report(file), result, 10)


def test_lengths_beyond_the_model_are_refused(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="longest sequence, 24; got 16 and 10000"):
        bench.run(bundle, None, ("ort",), bench.Protocol(tokens=10_000))


def test_a_runtime_that_fails_to_load_is_one_error(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="runtime nonsense: unknown runtime 'nonsense'"):
        bench.run(bundle, None, ("nonsense",), bench.Protocol(source=4, tokens=4, rounds=3))


def test_a_process_that_ended_before_it_was_asked_has_said_why(bundle: Bundle) -> None:
    arguments = ("nonsense", str(bundle.path), None, None, bench.Protocol(), False)
    with bench.Worker("runtime nonsense", bench._work, *arguments) as worker:
        worker._process.join()
        with pytest.raises(UnsupportedError, match="runtime nonsense: unknown runtime 'nonsense'"):
            worker.request("round")


def test_another_model_is_not_measured_beside_it(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="was not made from this preset:tiny: their hashes differ"):
        bench.run(bundle, "preset:tiny", ("torch",), bench.Protocol(source=4, tokens=4, rounds=3))
    with pytest.raises(CheckpointError, match="there is no checkpoint nowhere"):
        bench.run(bundle, "nowhere", ("torch",), bench.Protocol(source=4, tokens=4, rounds=3))


def test_the_gpu_record_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is none, it says what is missing and exits 3."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: `make gpu` makes the record")
    with pytest.raises(SystemExit) as end:
        run_guarded(gpu, [])
    told = capsys.readouterr().err
    assert end.value.code == 3
    assert "CUDA" in told or "NVIDIA" in told
    assert len(told.splitlines()) == 1


def test_errors_of_a_process_are_those_of_the_command(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="runtime reference: the reference runtime has one thread, got 2"):
        bench.run(bundle, None, ["reference"], bench.Protocol(threads=2))
    with pytest.raises(UnsupportedError, match="beams must not exceed the model's target vocabulary, 22; got 100"):
        bench.run(bundle, None, ["ort"], bench.Protocol(beams=100))


def test_what_was_not_measured_is_not_compared() -> None:
    figures = {"median": 1.0, "q1": 1.0, "q3": 1.0}
    phases = {phase: figures for phase in bench.UNITS if phase != "peak memory"}
    report = {"protocol": {}, "runtimes": {"ort": phases}}
    assert bench.regressions(report, report, 0.0) == []
    measured = bench._figures([dict.fromkeys(bench.UNITS, 1.0)], {"load": 1.0, "peak memory": float("nan")})
    assert "load" in measured


@pytest.mark.parametrize("names", [("ort", "reference"), ("reference", "ort")])
def test_the_first_runtime_that_can_not_run_is_named(
    names: tuple[str, str], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, *_: str) -> None:
        raise UnsupportedError(f"the {name} runtime can't")

    monkeypatch.setattr(runtimes, "require_target", refuse)
    found = CliRunner().invoke(cli, ["bench", str(bundle.path), "--runtime", names[0], "--runtime", names[1]])
    assert str(found.exception) == f"the {names[0]} runtime can't"
