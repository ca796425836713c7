"""The driver of cuda bundles over a device that computes nothing: what it asks of it, step by step.

    python -m tests.fake_cuda.driven BUNDLE ANSWER

The answer, a JSON file, has the providers of all nodes, and the counts of each step of a greedy search and of a beam
search, and of greedy searches on new threads; what is found means nothing.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.fake_cuda.asked import KINDS, counts
from txport import runtimes
from txport.bench import measure as bench
from txport.bundles.bundle import load_bundle
from txport.runtimes.base import Runtime
from txport.runtimes.inputs import lengths_of
from txport.search.generate import first_tokens

STEPS, BEAMS = 12, 2


def since(before: dict[str, int]) -> dict[str, int]:
    now = counts()
    return {kind: now[kind] - before[kind] for kind in KINDS}


def steps(runtime: Runtime, facts: Any, beams: int) -> list[dict[str, int]]:
    """Of each step with its reordering."""
    source = bench.draw_source(facts, bench.Protocol(batch=2, source=5))
    state = runtime.start(source, lengths_of(source, facts), max_length=STEPS + 5)
    tokens = first_tokens(source, facts)
    found = []
    for number in range(STEPS):
        before = counts()
        scores, state = runtime.step(tokens, state, top=1 if beams == 1 else 2 * beams)
        assert scores.ids is not None
        tokens = scores.ids[:, 0]
        if beams > 1:
            rows = np.repeat(np.arange(2), beams) if number == 0 else np.arange(2 * beams)[::-1]
            state = runtime.select(state, np.sort(rows))
            tokens = tokens[np.sort(rows)]
        found.append(since(before))
    return found


def launches(runtime: Any) -> list[int]:
    """Of the provider's own kernels, by queue."""
    count = ctypes.CDLL("libcuda.so.1").fake_launches_on
    count.restype = ctypes.c_long
    count.argtypes = [ctypes.c_void_p]
    return [count(stream) for stream in runtime.device.streams]


def beside(runtime: Any, facts: Any) -> dict[str, list[int]]:
    """How many kernels are launched by a start and by a step, by queue."""
    source = bench.draw_source(facts, bench.Protocol(batch=2, source=5))
    before = launches(runtime)
    state = runtime.start(source, lengths_of(source, facts), max_length=STEPS)
    between = launches(runtime)
    runtime.step(first_tokens(source, facts), state, top=3)  # of a shape that no step before had
    both = zip(before, between, launches(runtime), strict=True)
    started, stepped = zip(*((now - one, then - now) for one, now, then in both), strict=True)
    return {"start": list(started), "step": list(stepped)}


def on_threads(runtime: Runtime, facts: Any, count: int) -> list[dict[str, int]]:
    """What a greedy search asks for on each of some threads, one after the other, each of which is new."""
    found = []
    for _ in range(count):
        before = counts()
        thread = threading.Thread(target=steps, args=(runtime, facts, 1))
        thread.start()
        thread.join()
        found.append(since(before))
    return found


def main(folder: str, answer: str) -> None:
    bundle = load_bundle(Path(folder))
    runtime = runtimes.load("ort", bundle, provider="cuda")
    facts = bundle.manifest.facts
    placed = runtime.placement()
    found = {
        "placement": sorted({provider for each in placed.values() for provider in each}),
        "greedy": steps(runtime, facts, 1),
        "beams": steps(runtime, facts, BEAMS),
        "threads": on_threads(runtime, facts, 3),
        "beside": beside(runtime, facts),
        "refused": counts()["refused"],
    }
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
