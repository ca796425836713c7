"""The time of each phase at each size: rounds in which the candidates take turns, in several processes of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from txport.bench import bandwidth, worker
from txport.bench.candidates import Candidate
from txport.bench.others import Others
from txport.bench.plan import Plan, Protocol
from txport.bench.worker import Worker
from txport.system.progress import Progress

BUSY = 0.1  # cores that other programs use during a block of rounds: it is measured again
BLOCK = 10  # rounds: the system counts processor time in steps of 10 ms, too coarse for one round
AGAIN = 3  # times as many rounds as planned, at most
WARM_UP = 2
YARDSTICK = np.ones(16 << 20, np.uint8)
Json = dict[str, object]


class Size:
    """The measurements at one size: samples by candidate and phase, in the order of the rounds.

    `memory` and `equal` are, by candidate, the peak memory and the share of tokens that are the reference's. `turns`
    has the number of the processes of each round, `yardstick` the time of a fixed computation in it.
    """

    def __init__(self, size: Protocol, memory: dict[str, float], equal: dict[str, float]) -> None:
        self.size = size
        self.memory = memory
        self.equal = equal
        self.turns: list[int] = []
        self.yardstick: list[float] = []
        self.samples: dict[str, dict[str, list[float]]] = {label: {} for label in memory}

    def add(self, turn: int, times: Mapping[str, Mapping[str, float]], yardstick: float) -> None:
        """Add a round."""
        self.turns.append(turn)
        self.yardstick.append(yardstick)
        for label, phases in times.items():
            for phase, value in phases.items():
                self.samples[label].setdefault(phase, []).append(value)

    def to_dict(self) -> Json:
        """Return JSON values."""
        figures: dict[str, Json] = {}
        for label, phases in self.samples.items():
            every = {**phases, "peak memory": [self.memory[label]]}
            figures[label] = {phase: summary(values) for phase, values in every.items() if is_known(values)}
        lists = {"equal tokens": self.equal, "turns": self.turns, "yardstick": self.yardstick}
        return {**asdict(self.size), **lists, "figures": figures}


class Phases:
    """Measures all sizes of a plan. `busy` counts the rounds that other programs disturbed, and that were kept."""

    def __init__(self, candidates: Sequence[Candidate], plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._candidates = candidates
        self._bytes: dict[tuple[str, int], int] = {}
        self._spare = AGAIN * plan.rounds * len(plan.sizes())
        self.sizes: list[Size] = []
        self.busy = 0

    def check(self, workers: Mapping[str, Worker], reference: str) -> None:
        """Run each size once; keep the share of the tokens that are the reference's, and the peak memory."""
        for size in self._plan.sizes():
            self._progress(f"comparing tokens at batch {size.batch}, beams {size.beams}, source {size.source}")
            ends = {label: each.request("run", size) for label, each in workers.items()}
            expected = ends[reference]["ids"]
            equal = {label: float(np.mean(np.equal(end["ids"], expected))) for label, end in ends.items()}
            self.sizes.append(Size(size, {label: end["peak memory"] for label, end in ends.items()}, equal))
        self._bytes = _bytes_read(self._candidates, self._plan)

    def measure(self, workers: Mapping[str, Worker], turn: int) -> None:
        """Measure the rounds of one turn: its share of all, in the processes of this turn."""
        planned = self._plan.rounds * (turn + 1) // self._plan.starts
        sizes = set(self._bytes.values())
        with contextlib.ExitStack() as stack:
            readers = {size: stack.enter_context(worker.start_reader(size, self._plan.threads)) for size in sizes}
            others = Others([each.pid for each in (*workers.values(), *readers.values())])
            for number, size in enumerate(self.sizes):
                for _ in range(WARM_UP):
                    self._round(size, workers, readers)
                while (left := planned - len(size.turns)) > 0:
                    done = f"round {len(size.turns) + 1} of {self._plan.rounds}"
                    self._progress(f"size {number + 1} of {len(self.sizes)}, {done}")
                    others.cores()
                    block = [self._round(size, workers, readers) for _ in range(min(BLOCK, left))]
                    self._keep(size, turn, block, (others.cores() or 0.0) > BUSY)

    def _keep(
        self, size: Size, turn: int, block: list[tuple[dict[str, dict[str, float]], float]], is_busy: bool
    ) -> None:
        if is_busy and self._spare > 0:
            self._spare -= len(block)
            return
        self.busy += is_busy * len(block)
        for times, yardstick in block:
            size.add(turn, times, yardstick)

    def _round(
        self, size: Size, workers: Mapping[str, Worker], readers: Mapping[int, Worker]
    ) -> tuple[dict[str, dict[str, float]], float]:
        """Return the times of each candidate, and of the yardstick before and after them."""
        before = _yardstick()
        times = {label: each.request("round", size.size) for label, each in workers.items()}
        yardstick = (before + _yardstick()) / 2
        for label in times:
            if read := self._bytes.get((label, size.size.beams)):
                speed = readers[read].request("read")["speed"]
                times[label]["read bandwidth"] = speed / 1e9
                times[label]["bandwidth reached"] = 100 * read / (1e-3 * times[label]["further token"]) / speed
        return times, yardstick


def _bytes_read(candidates: Sequence[Candidate], plan: Plan) -> dict[tuple[str, int], int]:
    """Return the bytes of weights that a step reads, by candidate and beams, where they are known."""
    found: dict[tuple[str, int], int] = {}
    for each in candidates if plan.provider == "cpu" else ():
        for beams in plan.beams if each.reads_bundle else ():
            if size := bandwidth.step_bytes(each.bundle, beams):
                found[each.label, beams] = size
    return found


def _yardstick() -> float:
    """Return the milliseconds of a fixed computation, which show how fast the machine is in this round."""
    begun = time.perf_counter()
    for _ in range(5):
        YARDSTICK.max()
    return 1e3 * (time.perf_counter() - begun)


def summary(values: Sequence[float] | NDArray[np.float64]) -> Json:
    """Return the minimum, the quartiles and the samples, with 6 digits."""
    samples = [float(f"{value:.6g}") for value in values]
    return {"min": min(samples), **quartiles(samples), "samples": samples}


def quartiles(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the quartiles of the values of several rounds."""
    q1, median, q3 = np.percentile(values, (25, 50, 75))
    return {"q1": float(q1), "median": float(median), "q3": float(q3)}


def is_known(values: Sequence[float]) -> bool:
    """Return whether all values are numbers: some systems do not count memory."""
    return bool(np.isfinite(values).all())
