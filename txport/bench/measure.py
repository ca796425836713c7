"""Measure bundles, and PyTorch beside them: by phase and size, one input at a time, and in batches.

Each candidate runs in a process of its own. Rounds of the candidates alternate, so that changes of the machine affect
all of them. Tokens are compared before anything is timed.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport import runtimes
from txport.bench import profile, server, worker
from txport.bench.candidates import TORCH, Candidate, require
from txport.bench.candidates import candidates as candidates
from txport.bench.compare import FORMAT, plan_of
from txport.bench.energy import Meter
from txport.bench.phases import Phases, is_known, summary
from txport.bench.phases import quartiles as quartiles
from txport.bench.plan import LIMITS, OFFLINE, PHASES, SERVER, SINGLE
from txport.bench.plan import Plan as Plan
from txport.bench.rounds import UNITS as UNITS
from txport.bench.rounds import WORK
from txport.bench.rounds import Protocol as Protocol
from txport.bench.rounds import draw_source as draw_source
from txport.bench.server import PERCENTILES
from txport.bench.streams import Item
from txport.bench.worker import Worker
from txport.errors import UnsupportedError
from txport.models.audio import Features
from txport.proof.metrics import metric_of
from txport.system import machine
from txport.system.progress import Progress, logged
from txport.version import __version__

BANDWIDTH = {
    "read bandwidth": "GB/s",  # of the machine, for as many bytes as a step reads, in the same rounds
    "bandwidth reached": "%",  # of a step: bytes of its weights / time, as a share of the read bandwidth
}
DRAWN = 64  # random inputs, if none are given
COMPARED = 64  # inputs on which quality is measured
CHUNK = 16  # inputs of `single` before another candidate's turn
PASSES = 5  # of `offline`
Json = dict[str, object]


class Inputs(NamedTuple):
    """Texts, token ids or features; `targets` has the right answers of each text, if they are known."""

    items: Sequence[Item]
    what: str
    targets: Sequence[Sequence[str]] = ()


def run(
    candidates: Sequence[Candidate],
    plan: Plan,
    inputs: Inputs | None = None,
    progress: Progress = logged,
    *,
    metric: str = "exact",
    trust_code: bool = False,
) -> Json:
    """Measure the candidates; return the report (docs/bench.md).

    Raises `UnsupportedError` for a plan that the model does not support, `UnavailableError` if a process dies.
    """
    require(candidates, plan, trust_code)
    facts = candidates[0].bundle.manifest.facts
    if inputs is not None and inputs.targets and not (facts.generates and facts.vocabulary is facts.reads):
        raise UnsupportedError("targets need a model that reads and writes text; give texts alone")
    metric_of(metric)  # raises an error if its package is missing
    inputs = inputs or _inputs(candidates, plan)
    limit = (
        None if inputs.targets or (facts.is_encoder_decoder and isinstance(inputs.items[0], str)) else plan.tokens[0]
    )
    figures: dict[str, dict[str, list[float]]] = {each.label: {} for each in candidates}
    phases = Phases(candidates, plan, progress)
    reference = reference_of(candidates)
    quality: dict[str, Json] = {}
    for turn in range(plan.starts):
        with contextlib.ExitStack() as stack:
            workers, times = _start(candidates, plan, stack, trust_code, progress)
            if turn == 0:
                if SERVER in plan.scenario:
                    server.require(workers)
                phases.check(workers, reference)
                quality = _quality(workers, reference, inputs, limit, metric, facts.generates)
            if PHASES in plan.scenario:
                phases.measure(workers, turn)
            for label, each in workers.items():
                for name, value in {**times[label], **each.request("memory")}.items():
                    figures[label].setdefault(name, []).append(value)
            if turn == plan.starts - 1:
                streams = _streams(plan, workers, inputs.items, limit, progress)
    streams[LIMITS] = profile.measure(candidates, plan, progress) if LIMITS in plan.scenario else {}
    names = [each.runtime for each in candidates]
    return {
        "format": FORMAT,
        "machine": machine.describe(),
        "versions": {"txport": __version__, **runtimes.versions_of(names), "python": platform.python_version()},
        "plan": plan_of(plan),
        "inputs": {"count": len(inputs.items), "what": inputs.what},
        "units": {"load": "ms", "first run": "ms", **WORK[facts.task].units, **BANDWIDTH},
        "busy rounds": phases.busy,
        "candidates": {
            each.label: _about(each)
            | {"figures": {name: summary(values) for name, values in figures[each.label].items() if is_known(values)}}
            | {"quality": quality[each.label], **{name: by.get(each.label) for name, by in streams.items()}}
            for each in candidates
        },
        "sizes": [size.to_dict() for size in phases.sizes],
    }


def reference_of(candidates: Sequence[Candidate]) -> str:
    """Return the candidate that others are compared with: PyTorch, else the first one in fp32, else the first."""
    ranks = {TORCH: 0, "fp32": 1}
    key = [min(ranks.get(each.runtime, 2), ranks.get(each.bundle.manifest.precision, 2)) for each in candidates]
    return candidates[key.index(min(key))].label


def _start(
    candidates: Sequence[Candidate], plan: Plan, stack: contextlib.ExitStack, trust_code: bool, progress: Progress
) -> tuple[dict[str, Worker], dict[str, dict[str, float]]]:
    """Start a process of each candidate; return the processes, and the times to load and of the first run."""
    workers: dict[str, Worker] = {}
    times: dict[str, dict[str, float]] = {}
    for each in candidates:
        progress(f"starting {each.label}")
        workers[each.label] = stack.enter_context(worker.start(each, plan, trust_code))
        times[each.label] = workers[each.label].request("start", plan.sizes()[0])
    return workers, times


def _inputs(candidates: Sequence[Candidate], plan: Plan) -> Inputs:
    """Return the samples of the first bundle; random inputs if it has none, or a bundle has no tokenizer."""
    bundle = candidates[0].bundle
    facts = bundle.manifest.facts
    drawn = draw_source(facts, Protocol(batch=2 if isinstance(facts.reads, Features) else DRAWN, source=plan.source[0]))
    if isinstance(facts.reads, Features):
        return Inputs(list(drawn), "random features")
    if bundle.samples and all(each.bundle.texts for each in candidates):
        return Inputs(bundle.samples, "the samples of the checkpoint")
    return Inputs(drawn.tolist(), f"random lists of {plan.source[0]} tokens")


def _quality(
    workers: Mapping[str, Worker], reference: str, inputs: Inputs, limit: int | None, metric: str, generates: bool
) -> dict[str, Json]:
    """Return, by candidate, the share of next tokens that are not the reference's, the loss, and the score.

    All candidates read the tokens of the reference's answers (teacher forcing), so a difference does not spread. Of an
    encoder it is the share of other positions of the largest number; for embeddings, the mean of 1 - cosine.
    """
    items = inputs.items[:COMPARED]
    targets = workers[reference].request("targets", items, limit)["targets"]
    kept = [at for at, target in enumerate(targets) if target or not generates]
    if not kept:  # the model ends every answer at once
        return {label: {"reference": reference, "error": None} for label in workers}
    some, wanted = [items[at] for at in kept], [targets[at] for at in kept]
    found = {label: each.request("forced", some, wanted) for label, each in workers.items()}
    quality = {}
    for label, each in found.items():
        quality[label] = {"reference": reference, "error": _error(found[reference]["best"], each["best"])}
        if "loss" in each:
            quality[label]["loss"] = each["loss"]
        if inputs.targets:
            answers = workers[label].request("answers", inputs.items)["answers"]
            quality[label] |= {"metric": metric, "score": metric_of(metric).score(inputs.targets, answers)}
    return quality


def _error(expected: Sequence[object], actual: Sequence[object]) -> float:
    one, other = (np.concatenate([np.asarray(each) for each in rows]) for rows in (expected, actual))
    if one.ndim == 1:
        return float(np.mean(one != other))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))
    return max(0.0, 1 - float(np.mean(np.nan_to_num(cosines))))  # 0 for a vector of zeros or with infinity


def _streams(
    plan: Plan, workers: Mapping[str, Worker], items: Sequence[Item], limit: int | None, progress: Progress
) -> dict[str, dict[str, Json]]:
    """Return the figures of each candidate by scenario; none for one that the plan does not have."""
    parts = {SINGLE: _single, OFFLINE: _offline, SERVER: server.measure}
    return {
        name: part(plan, workers, items, limit, progress) if name in plan.scenario else {}
        for name, part in parts.items()
    }


def _single(
    plan: Plan, workers: Mapping[str, Worker], items: Sequence[Item], limit: int | None, progress: Progress
) -> dict[str, Json]:
    """Answer one input at a time; return the latency of each candidate, and its parts."""
    parts: dict[str, list[tuple[float, float, float]]] = {label: [] for label in workers}
    for each in workers.values():
        each.request("single", items[:CHUNK], limit, plan.seconds / 10)  # warm-up: kernels and caches
    for start in range(0, plan.inputs, CHUNK):
        progress(f"one input at a time, {start} of {plan.inputs}")
        chunk = [items[at % len(items)] for at in range(start, min(start + CHUNK, plan.inputs))]
        for label, each in workers.items():
            left = plan.seconds - sum(map(sum, parts[label]))
            if left > 0:
                parts[label] += each.request("single", chunk, limit, left)["parts"]
    return {label: _latency(1e3 * np.array(each)) for label, each in parts.items()}


def _latency(parts: NDArray[np.float64]) -> Json:
    """Return percentiles of the latency, and the median of its parts, of (N, 3) milliseconds."""
    whole = parts.sum(axis=1)
    percentiles = {f"p{each}": float(np.percentile(whole, each)) for each in PERCENTILES}
    medians = dict(zip(("tokenise", "answer", "detokenise"), np.median(parts, axis=0).tolist(), strict=True))
    return {"count": len(whole), **percentiles, **medians, "latency": summary(whole)}


def _offline(
    plan: Plan, workers: Mapping[str, Worker], items: Sequence[Item], limit: int | None, progress: Progress
) -> dict[str, Json]:
    """Answer batches of inputs; return inputs and tokens a second of each candidate, and J an input where known."""
    repeated = [items[at % len(items)] for at in range(plan.inputs)]
    batch = max(plan.batch)
    rates: dict[str, dict[str, list[float]]] = {label: {"inputs": [], "tokens": []} for label in workers}
    meter, energy = Meter(), {label: list[float]() for label in workers}
    for number in range(PASSES + 1):
        progress(f"in batches of {batch}, pass {number} of {PASSES}")
        for label, each in workers.items():
            meter.joules()
            found = each.request("offline", repeated, limit, batch, plan.seconds / PASSES)
            joules = meter.joules()
            if not number:  # the warm-up
                continue
            for name, values in rates[label].items():
                values.append(found[name] / found["seconds"])
            if joules is not None:
                energy[label].append(joules / found["inputs"])
    return {
        label: {"batch": batch, **{name: summary(values) for name, values in each.items()}}
        | ({"joules": summary(energy[label])} if energy[label] else {})
        for label, each in rates.items()
    }


def _about(candidate: Candidate) -> Json:
    manifest = candidate.bundle.manifest
    is_torch = candidate.runtime == TORCH
    return {
        "runtime": candidate.runtime,
        "checkpoint": manifest.checkpoint,
        "target": None if is_torch else manifest.target,
        "precision": "fp32" if is_torch else manifest.precision,
        "bytes": None if is_torch else candidate.bundle.size,
    }
