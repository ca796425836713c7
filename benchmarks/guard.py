"""Whether `txport bench --compare` judges rightly: `python -m benchmarks.guard [CHECKPOINT] [--trials 20]`.

It measures a checkpoint's portable and cpu bundle again and again: as they are, and the cpu bundle slowed down by 15 %;
with `--busy` beside a program that keeps a core busy. Each measurement is compared with an earlier one of the bundles
as they are. Prints the number of verdicts of each kind.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import click

from txport import runtimes
from txport.api.locate import find_bundle
from txport.bench import compare, measure, worker
from txport.bench.candidates import Candidate
from txport.bench.others import Others
from txport.bench.phases import BUSY
from txport.bench.plan import Plan
from txport.bundles.bundle import Bundle

ALLOWED = 10.0  # percent
SLOWER = 0.15
SLOWED = ("start", "prefill", "step", "select", "infer")  # the calls that run graphs
PLAN = Plan(batch=(1,), scenario=("phases",), rounds=480, starts=48)


class Slowed:
    """A runtime whose calls take longer by a share of their time."""

    def __init__(self, runtime: Any, share: float) -> None:
        self._runtime = runtime
        self._share = share

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        return self._slow(found) if name in SLOWED else found

    def _slow(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            found = call(*arguments, **options)
            end = time.perf_counter() + self._share * (time.perf_counter() - begun)
            while time.perf_counter() < end:
                pass
            return found

        return slowed


def work(*arguments: Any) -> None:
    """Do the work of a process of `bench`, with a slowed runtime for the cpu bundle."""
    load = runtimes.load

    def slowed(name: str, bundle: Bundle, **options: Any) -> Any:
        runtime = load(name, bundle, **options)
        return Slowed(runtime, SLOWER) if bundle.manifest.target == "cpu" else runtime

    with mock.patch.object(runtimes, "load", slowed):
        worker.work(*arguments)


def spin() -> None:
    """Keep one core busy."""
    while True:
        pass


def quiet() -> None:
    """Wait until other programs use less than `BUSY` cores for a second."""
    others = Others([])
    cores = 1.0
    while cores > BUSY:
        time.sleep(1)
        cores = others.cores() or 0.0


def measured(candidates: list[Candidate], plan: Plan, of: Callable[..., None] = worker.work) -> dict[str, Any]:
    """Return a report, measured by processes that do the work `of`."""
    with mock.patch.object(worker, "work", of):
        return measure.run(candidates, plan)


def verdict(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return what `txport bench --compare` says."""
    found = compare.verdicts(old, new, ALLOWED)
    if compare.noise(old, new):
        return "too noisy to tell"
    if any(each.is_worse for each in found):
        return "slower"
    return "pass" if all(each.is_clear for each in found) else "too noisy to tell"


def describe(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the largest change, and the number of busy rounds."""
    most = max(compare.verdicts(old, new, ALLOWED), key=lambda each: each.change)
    return f"{most.describe()}, {new['busy rounds']} busy rounds"


@click.command()
@click.argument("checkpoint", default="g2p-en")
@click.option("--trials", default=20, show_default=True, help="Number of trials of each kind.")
@click.option("--threads", default=1, show_default=True, help="Threads per operator: fewer than the cores.")
@click.option("--busy", is_flag=True, help="Only the trials beside a busy program.")
def guard(checkpoint: str, trials: int, threads: int, busy: bool) -> None:
    """Count the verdicts of trials of each kind."""
    bundles = [(checkpoint, find_bundle(checkpoint, target=target)) for target in ("portable", "cpu")]
    candidates = measure.candidates(bundles, ("ort",))
    plan = replace(PLAN, threads=threads)
    quiet()
    before = measured(candidates, plan)
    counts: dict[str, Counter[str]] = {}
    for trial in range(trials):
        quiet()
        if busy:
            process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
            process.start()
        pairs = {"unchanged": measured(candidates, plan), "slowed by 15 %": measured(candidates, plan, work)}
        if busy:
            process.kill()
        for kind, report in pairs.items():
            counts.setdefault(kind, Counter())[verdict(before, report)] += 1
        said = {kind: dict(each) for kind, each in counts.items()}
        widest = {kind: describe(before, report) for kind, report in pairs.items()}
        print(trial + 1, said, widest, file=sys.stderr, flush=True)
        if not busy and not pairs["unchanged"]["busy rounds"]:
            before = pairs["unchanged"]
    beside = ", beside a program that keeps a core busy" if busy else ""
    for kind, each in counts.items():
        print(f"{kind}{beside}: {', '.join(f'{name} {count} of {trials}' for name, count in each.items())}")


if __name__ == "__main__":
    guard()
