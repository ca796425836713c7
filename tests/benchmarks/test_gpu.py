"""`make gpu`: what it computes of times, when it stops, and that every line of it runs without a GPU."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import figures, report
from benchmarks.gpu.__main__ import Run, all_of
from benchmarks.gpu.budget import MARGIN, Budget
from benchmarks.gpu.engines import txport_cuda
from benchmarks.gpu.engines.pytorch_cuda import Engine
from benchmarks.gpu.lines import CT2, EAGER, LINES, TINY, Line, quick
from benchmarks.gpu.profile import read_profile
from benchmarks.gpu.sides import Place
from benchmarks.peers.engines import Search
from tests.bundles import drivers
from txport.runtimes.ort.cuda import device
from txport.runtimes.ort.cuda.host import HostDevice

LINE = Line(checkpoint=TINY, precision="fp16", batch=2, peers=MappingProxyType({EAGER: 3.0, CT2: None}), at_most=0.5)


class Clock:
    """Time that passes only while something works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], float]:
        def work() -> float:
            self.now += seconds
            return seconds

        return work


@given(st.lists(st.floats(0.1, 40), max_size=12), st.floats(1, 100))
def test_what_is_begun_is_what_the_time_is_presumed_to_be_enough_for(durations: list[float], seconds: float) -> None:
    clock = Clock()
    budget = Budget(seconds, clock=clock)
    presumed = 10.0
    names = []
    for number, duration in enumerate(durations):
        has_time = seconds - clock.now >= presumed
        found = budget.run(str(number), "line", 10.0, clock.work(duration))
        assert (found is not None) == has_time
        if has_time:
            presumed = MARGIN * duration
        else:
            names.append(str(number))
    assert budget.left_out == names
    longest = max(durations, default=0.0)
    assert clock.now <= seconds + longest


def test_what_outlasts_the_limit_is_cut_off_and_said() -> None:
    """Also what takes every exception for an error of its own; what has ended by then stays."""

    def outlasts() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(30)

    budget = Budget(0.3)
    started = time.monotonic()
    assert budget.run("one", "line", 0.1, lambda: 1) == 1
    assert budget.run("two", "proof", 0.1, outlasts) is None
    assert budget.run("three", "export", 0.1, lambda: 3) is None
    assert time.monotonic() - started < 20
    assert budget.left_out == ["two, cut off after 0 s", "three"]
    assert budget.failed == {}


@given(st.lists(st.floats(1e-3, 10), min_size=3, max_size=9), st.floats(0.1, 10))
def test_ratios_are_of_one_round_and_shares_of_what_a_step_moves(ours: list[float], times: float) -> None:
    tokens = [[1] * 6, [2] * 6]
    record = figures.line_record(
        LINE,
        {"txport": ours, EAGER: [times * each for each in ours]},
        {"txport": tokens, EAGER: tokens[:1] * 2},
        600,
        1e3,
    )
    assert record["ratios"][EAGER] == pytest.approx(dict.fromkeys(("q1", "median", "q3"), times))
    assert record["equal targets"] == {EAGER: 1}
    median = float(np.median(ours))
    assert record["sides"]["txport"]["ms a token"]["median"] == pytest.approx(1e3 * median / 6)
    assert record["sides"]["txport"]["tokens a second"]["median"] == pytest.approx(
        float(np.median(12 / np.array(ours)))
    )
    assert record["share of bandwidth"]["median"] == pytest.approx(float(np.median(600 * 6 / np.array(ours) / 1e3)))


def test_each_requirement_is_judged() -> None:
    tokens = [[1] * 5, [2] * 5]
    fast = figures.line_record(LINE, {"txport": [2e-3], EAGER: [6e-3]}, {"txport": tokens, EAGER: tokens}, 1, 1.0)
    found = figures.judgements([LINE], {LINE.name: fast}, {"a-fp32": 2e-4, "a-fp16": 9.0}, 0.05)
    assert [each["verdict"] for each in found] == ["reached", "reached", "falls short", "reached"]
    found = figures.judgements([LINE], {}, {}, None)
    assert [each["verdict"] for each in found] == ["not measured"] * 4
    assert figures.judge("x", 1.0, math.nan, at_least=True)["verdict"] == "not measured"
    assert "falls short  x" in report.verdicts([figures.judge("x", 1.0, 0.5, at_least=True)])


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_a_step_moves_its_weights_its_caches_and_its_logits(precision: str, tmp_path: Path) -> None:
    bundle = drivers.made("seq2seq", "cuda", precision, tmp_path)
    facts = bundle.manifest.facts
    size = 4 if precision == "fp32" else 2
    line = replace(LINE, precision=precision, batch=1, source=0, tokens=0)
    weights = figures.weight_bytes(bundle)
    assert figures.step_bytes(bundle, line) == weights + 4 * facts.writes.size
    more = figures.step_bytes(bundle, replace(line, source=7)) - figures.step_bytes(bundle, line)
    assert more == 7 * sum(each.dims[0] * each.dims[2] for each in facts.owned("source")) * size  # type: ignore[operator]
    parameters = sum(p.numel() for p in drivers.seeded_model(drivers.configs()["seq2seq"][0], seed=3).parameters())
    assert weights < parameters * size + 4096


def test_a_profile_counts_one_run_and_leaves_the_first_out(tmp_path: Path) -> None:
    events = []
    for start in (0, 100, 200):
        events.append({"cat": "Session", "name": "model_run", "ts": start})
        for number, name in enumerate(("MatMul", "Add", "MatMul")):
            args = {"op_name": name, "provider": "CUDAExecutionProvider"}
            events.append({"cat": "Node", "name": f"{name}_{number}_kernel_time", "ts": start + 1, "args": args})
            events.append({"cat": "Kernel", "name": "gemm" if name == "MatMul" else "add", "ts": start + 1})
    events.append({"cat": "Node", "name": "MatMul_0_fence_before", "ts": 250, "args": {}})
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(events), encoding="utf-8")
    found = read_profile(file)
    assert found["nodes"] == {"CUDAExecutionProvider": 3}
    assert found["operators"] == {"MatMul": 2, "Add": 1}
    assert found["kernels"] == 3


def test_the_compiled_step_finds_what_pytorch_finds(tmp_path: Path) -> None:
    sources = [[5, 9, 11, 8, 2], [7, 7, 12, 10, 2]]
    found = {}
    for backend in (None, "eager"):
        options = {"checkpoint": TINY, "precision": "fp32", "device": "cpu", "compile": backend}
        engine = Engine(tmp_path, Search(beams=1, max_new_tokens=7, forced=False), options)
        found[backend] = [engine.decode(engine.generate(engine.encode(each))) for each in (sources, sources[::-1])]
    torch._dynamo.reset()
    assert found["eager"] == found[None]
    assert found[None][0] == found[None][1][::-1]


@pytest.mark.parametrize("beams", [1, 2])
def test_nothing_is_captured_while_it_is_timed(beams: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[int] = []
    run = HostDevice.run

    def watch(self: HostDevice, binding: Any, graph: int = device.EAGER) -> None:
        if graph != device.EAGER and not self.is_captured(graph):
            captured.append(graph)
        run(self, binding, graph)

    monkeypatch.setattr(HostDevice, "run", watch)
    bundle = drivers.made("seq2seq", "cuda", "fp16", tmp_path)
    options = {"runtime": "cuda-stand-in", "provider": "cpu", "batch_size": 3, "source_tokens": (5, 5)}
    engine = txport_cuda.Engine(bundle.path, Search(beams=beams, max_new_tokens=12, forced=beams > 1), options)
    before = len(captured)
    engine.generate([[5, 9, 11, 8, 2], [7, 2], [6, 6, 2]])
    assert before == len(captured) > 0


def test_every_line_runs_without_a_gpu(tmp_path: Path) -> None:
    place = Place(work=tmp_path, runtime="cuda-stand-in", device="cpu", compiler="eager", rounds=2)
    peers = MappingProxyType({EAGER: 8.0, CT2: 3.0})  # another process would compile for as long as all else takes
    lines = [replace(quick(line), precision="fp32", peers=peers) for line in (LINES[0], LINES[2])]
    run = Run(place, Budget(300), lines, None)
    run.proofs = [(TINY, "fp32")]
    result = all_of(run)
    assert result["failed"] == {}
    assert result["left out"] == []
    assert set(result["absent"]) == {CT2}
    [about] = result["bundles"]
    assert about["parity"]["verdict"] == "pass"
    assert set(about["step"]["nodes"]) == {"CPUExecutionProvider"}
    greedy, beams = result["lines"]
    for record in (greedy, beams):
        assert set(record["sides"]) == {"txport", EAGER}
        assert set(record["equal targets"].values()) == {record["targets"]}
        assert set(record["seconds to be ready"]) == set(record["sides"])
    json.dumps(result)
    printed = report.whole(result)
    assert f"failed: {CT2}: CTranslate2 is not installed" in printed
    assert "not measured  tiny fp32, greedy, batch 1: times CTranslate2" in printed
