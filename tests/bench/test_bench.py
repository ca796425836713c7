"""Measuring: every phase of every runtime, in processes of their own, and regressions by ratio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import txport
from benchmarks.gpu.__main__ import gpu
from tests.tiny import tiny_config, tiny_model, unproven
from txport import runtimes
from txport.bench import measure as bench
from txport.bench import worker
from txport.bench.page import markdown
from txport.bench.sections import points
from txport.bench.streams import Stream
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.cli.commands import cli
from txport.cli.guard import run_guarded
from txport.errors import CheckpointError, RunError, UnsupportedError

PLAN = bench.Plan(
    batch=(2,), beams=(2,), source=(5,), tokens=(4,), rounds=3, threads=1, inputs=4, seconds=1.0, starts=2
)
QUICK = replace(PLAN, scenario=("phases",), starts=1, beams=(1,), source=(4,))


def measured(bundle: Bundle, checkpoint: str | None, names: Sequence[str], plan: bench.Plan) -> Any:
    return bench.run(bench.candidates([("bundle", bundle)], names, checkpoint), plan)


@pytest.fixture(scope="module")
def result(bundle: Bundle, checkpoint: Path) -> dict[str, Any]:
    plan = replace(PLAN, batch=(1, 2))
    return {"command": "txport bench", **measured(bundle, str(checkpoint), ("torch", "ort"), plan)}


def test_every_phase_of_every_runtime_has_ordered_quartiles(result: dict[str, Any]) -> None:
    assert list(result["candidates"]) == ["torch", "ort"]
    assert [size["batch"] for size in result["sizes"]] == [1, 2]
    for size in result["sizes"]:
        for phases in size["figures"].values():
            assert set(phases) == set(bench.UNITS) - {"load"}
            assert all(0 < each["min"] <= each["q1"] <= each["median"] <= each["q3"] for each in phases.values())
            assert {len(each["samples"]) for name, each in phases.items() if name != "peak memory"} == {3}
    assert json.loads(json.dumps(result)) == result


def test_loading_and_the_first_run_are_repeated_in_new_processes(result: dict[str, Any]) -> None:
    for each in result["candidates"].values():
        assert [len(each["figures"][phase]["samples"]) for phase in ("load", "first run")] == [2, 2]


def test_runtimes_generate_the_same_tokens_and_work_in_processes_of_their_own(result: dict[str, Any]) -> None:
    assert [size["equal tokens"] for size in result["sizes"]] == 2 * [{"torch": 1.0, "ort": 1.0}]
    memory = {name: each["figures"]["peak memory"]["median"] for name, each in result["candidates"].items()}
    assert memory["ort"] < memory["torch"], "a process that runs a bundle must not hold PyTorch"


def test_quality_is_that_of_the_same_tokens(result: dict[str, Any]) -> None:
    quality = {name: each["quality"] for name, each in result["candidates"].items()}
    assert [each["reference"] for each in quality.values()] == ["torch", "torch"]
    assert [each["error"] for each in quality.values()] == [0, 0]
    assert quality["ort"]["loss"] == pytest.approx(quality["torch"]["loss"], rel=1e-4)


def test_streams_count_their_inputs(result: dict[str, Any]) -> None:
    for each in result["candidates"].values():
        single, offline = each["single"], each["offline"]
        assert single["count"] == len(single["latency"]["samples"]) == 4
        assert 0 < single["p50"] <= single["p90"] <= single["p99"]
        assert offline["batch"] == 2
        assert min(offline["inputs"]["samples"]) > 0


def test_a_report_may_be_of_limits_alone(bundle: Bundle) -> None:
    found = bench.candidates([("bundle", bundle)], ("ort",))
    report = bench.run(found, replace(QUICK, scenario=("limits",)))
    assert "Time by operator" in markdown({**report, "command": "txport bench"})
    assert points(report) == []


def test_what_is_not_finite_is_no_perfect_quality(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ([1.0, np.inf], [0.0, 0.0], [np.nan, 1.0]):
        assert bench._error([[[1.0, 1.0]]], [[wrong]]) == 1
    stream = Stream(bundle, runtimes.load("ort", bundle))
    step = type(stream.runtime).step

    def broken(*args: Any, **how: Any) -> Any:
        scores, state = step(*args, **how)
        return scores._replace(values=np.full_like(scores.values, np.nan)), state

    monkeypatch.setattr(type(stream.runtime), "step", broken)
    with pytest.raises(RunError, match="NaN"):
        stream.forced([[5, 6]], [[7, 8]])


def test_targets_give_a_score(bundle: Bundle) -> None:
    """The share of wrong answers: none if the targets are the model's own, half if one of two is another."""
    texts = ["bad", "chief"]
    answers = [each.output for each in txport.load(bundle.path).generate(texts)]
    found = bench.candidates([("bundle", bundle)], ("ort",))
    for targets, score in (([[answers[0]], [answers[1]]], 0), ([["-", answers[0]], ["-"]], 50)):
        report = bench.run(found, QUICK, bench.Inputs(texts, "two texts", targets))
        assert report["candidates"]["ort"]["quality"]["score"] == score
        assert [(each.error, each.on_front) for each in points(report)] == [(score, True)]


def test_a_wrong_candidate_is_seen_beside_its_speed(bundle: Bundle, tmp_path: Path) -> None:
    """Another model of the same vocabulary is not as the first one, and not on the front by its error."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(), seed=7))
    other = unproven(tmp_path / "toy", tmp_path / "other")
    found = bench.candidates([("one", bundle), ("two", other)], ("ort",))
    report = bench.run(found, QUICK)
    assert list(report["candidates"]) == ["one ort", "two ort"]
    assert report["candidates"]["two ort"]["quality"]["error"] > 0
    assert report["candidates"]["one ort"]["quality"]["error"] == 0
    assert report["sizes"][0]["equal tokens"]["two ort"] < 1


def test_lengths_beyond_the_model_are_refused(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="longest sequence, 24; got 16 and 10000"):
        measured(bundle, None, ("ort",), replace(QUICK, tokens=(10_000,), source=(16,)))


def test_a_runtime_that_fails_to_load_is_one_error(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="runtime nonsense: unknown runtime 'nonsense'"):
        measured(bundle, None, ("nonsense",), QUICK)


def test_a_process_that_ended_before_it_was_asked_has_said_why(bundle: Bundle) -> None:
    arguments = ("nonsense", str(bundle.path), None, None, QUICK, False)
    with bench.Worker("runtime nonsense", worker.work, *arguments) as process:
        process._process.join()
        with pytest.raises(UnsupportedError, match="runtime nonsense: unknown runtime 'nonsense'"):
            process.request("round", bench.Protocol())


def test_another_model_is_not_measured_beside_it(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="was not made from this preset:tiny: their hashes differ"):
        measured(bundle, "preset:tiny", ("torch",), QUICK)
    with pytest.raises(CheckpointError, match="there is no checkpoint nowhere"):
        measured(bundle, "nowhere", ("torch",), QUICK)


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
        measured(bundle, None, ["reference"], replace(QUICK, threads=2))
    with pytest.raises(UnsupportedError, match="beams must not exceed the model's target vocabulary, 22; got 100"):
        measured(bundle, None, ["ort"], replace(QUICK, beams=(100,)))


@pytest.mark.parametrize("names", [("ort", "reference"), ("reference", "ort")])
def test_the_first_runtime_that_can_not_run_is_named(
    names: tuple[str, str], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, *_: str) -> None:
        raise UnsupportedError(f"the {name} runtime can't")

    monkeypatch.setattr(runtimes, "require_target", refuse)
    found = CliRunner().invoke(cli, ["bench", str(bundle.path), "--runtime", names[0], "--runtime", names[1]])
    assert str(found.exception) == f"the {names[0]} runtime can't"
