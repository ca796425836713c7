"""The step that introduced an error: of the export, which is run again and probed step by step, or of ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import read_ir
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.streamed import copied
from txport.exporters.exporter import Job, exporter_of, stages
from txport.exporters.fused.packs import packs, parts_of
from txport.exporters.weights import FILE, INLINE_BELOW, WeightFile, outside
from txport.proof.bisect.isolation import Runner
from txport.proof.bisect.probe import Finding, Observation, compare_tap, make_probe, observe, shown
from txport.proof.bisect.taps import OUT, Tap
from txport.proof.parity.calls import compare_call
from txport.proof.parity.cases import Case
from txport.proof.parity.measures import Comparison, badness
from txport.proof.parity.replay import Call, Reference
from txport.proof.parity.tolerances import tolerance_of
from txport.runtimes.ort.onnx_runtime import ort
from txport.system.arrays import Array


def origin(finding: Finding, held: Checkpoint, manifest: Manifest) -> str:
    """Describe the first step after which the tap is wrong; if there is none, the error is only in the file.

    For a quantised bundle, `held` has the weights of the bundle: they are on their grid, and quantising them again
    does not change them.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / FILE).open("wb") as file:
        weights = WeightFile(file)
        for step, graph in graphs(finding.probe.role, held, manifest):
            fresh = _outside(graph, weights, Path(folder))
            file.flush()
            if errs(finding, fresh, packs(graph) | manifest.weights, manifest, Path(folder)):
                return f"brought in by {step}"
    return "not in a fresh export of the checkpoint: the file was altered, or another version made it; export it again"


def _outside(graph: ir.Model, weights: WeightFile, folder: Path) -> ir.Model:
    """Return a copy of a graph whose weights are in a file; the next step changes the graph itself."""
    other = graph.clone()
    for value in other.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= INLINE_BELOW:
            value.const_value = outside(tensor, str(value.name), folder, FILE, weights.place(str(value.name), tensor))
    return other


def graphs(role: str, held: Checkpoint, manifest: Manifest) -> Iterator[tuple[str, ir.Model]]:
    """Yield (step, graph) after each step of the export; the same graph is modified in place."""
    first = first_names(held.outline)
    model = copied(held.outline, getattr(torch, manifest.dtype))
    shared: dict[str, Any] = {"unrounded": lambda name: held.tensor(first[name]), "packed": held.packed}
    job = Job(model, manifest, role, read=held.reader, **shared)
    quantises = bool(manifest.quantization)
    yield from stages(exporter_of(manifest.target), job, lambda graph: forms_in(graph, manifest) if quantises else None)


def forms_in(graph: ir.Model, manifest: Manifest) -> dict[str, Form]:
    """Return the storage form in the bundle for each initializer of a graph that is not quantised yet."""
    named = ((str(value.name), parts_of(value)[0]) for value in graph.graph.initializers.values())
    return {name: manifest.forms[first] for name, first in named if first in manifest.forms}


def errs(finding: Finding, graph: ir.Model, table: Mapping[str, Stored], manifest: Manifest, folder: Path) -> bool:
    """Return True if `graph` is wrong at the same tap in the same call; False if it has no such tap or does not run."""
    probe = finding.probe
    seen = finding.observation
    modules = set(finding.tap.modules)
    try:
        fresh = make_probe(graph, table, probe.role, manifest, folder, probe.model, seen.record)
        alike = [each for each in fresh.taps if each.side == finding.tap.side and set(each.modules) & modules]
        if not alike:
            return False
        fresh = replace(fresh, some=tuple(alike)).with_ports()
        observation = observe(fresh, seen.case, seen.call, seen.record)
    except Exception:  # an incomplete graph need not run; ONNX Runtime raises other types
        return False
    alike = list(observation.seen)
    if finding.tap.form is not None:
        plain = {tap: _unrounded(tap, observation) for tap in alike if tap.form is None and tap.side == OUT}
        observation = replace(observation, truths={**observation.truths, **plain})
    # until they are quantised, weights are rounded to the bundle's type, which is coarser than the type of the probe
    coarse = replace(fresh, precision=manifest.arithmetic) if finding.tap.form is not None else fresh
    return any(not compare_tap(tap, observation, coarse if tap.form is None else fresh).passed for tap in alike)


@torch.inference_mode()
def _unrounded(tap: Tap, observation: Observation) -> Array:
    """Return a product with the activations that are not rounded, for a graph whose weights are not quantised yet."""
    products = []
    for call in (observation.record[name][tap.nth] for name in tap.modules):
        assert isinstance(call.part, nn.Linear)
        products.append(nn.functional.linear(call.tensor, call.part.weight, call.part.bias))
    found: Array = torch.cat(products, -1).detach().numpy().reshape(observation.truths[tap].shape)
    return found


LEVELS = {
    "no": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@dataclass(frozen=True)
class Miscompiled:
    """A graph that is right without optimisation and wrong at `level`, the lowest such level."""

    role: str
    level: str
    worst: Comparison


def miscompiled(
    bundle: Bundle, roles: Iterable[str], reference: Reference, cases: Iterable[Case], seed: int
) -> Miscompiled | None:
    """Return the first graph whose output differs from PyTorch with all optimisations, but not without; else None."""
    graphs = {role: shown(read_ir(bundle.file(role)), bundle.manifest) for role in roles}

    def runner(role: str, level: str) -> Runner:
        packs = bool(bundle.manifest.quantization)
        return Runner(graphs[role], bundle.file(role).parent, LEVELS[level], packs=packs)

    runners = {role: {level: runner(role, level) for level in ("no", "all")} for role in graphs}
    for case in cases:
        for call in (each for each in reference.replay(case, seed) if each.role in runners):
            found = _breach(case, call, runners[call.role]["all"], reference)
            if found is None or _breach(case, call, runners[call.role]["no"], reference) is not None:
                continue
            for level in LEVELS:
                worst = _breach(case, call, runner(call.role, level), reference)
                if worst is not None:
                    return Miscompiled(call.role, level, worst)
    return None


def _breach(case: Case, call: Call, runner: Runner, reference: Reference) -> Comparison | None:
    """Return the worst output beyond its tolerance; None if all outputs are within it."""
    tolerance = tolerance_of(reference.manifest.arithmetic)
    found = compare_call(case, "ort", call, runner.run(call.inputs), reference, tolerance)
    return max((each for each in found if not each.passed), key=badness, default=None)
