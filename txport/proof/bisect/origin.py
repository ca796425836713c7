"""The export step that introduced an error: the exporter is run again, and its graph is probed after each step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir
import torch

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.exporters.fused.packs import packs, parts_of
from txport.exporters.targets import TARGETS, Job, stages
from txport.models.model import Model
from txport.proof.bisect.probe import Finding, compare_tap, make_probe, observe


def origin(finding: Finding, model: Model, manifest: Manifest) -> str:
    """Describe the first step after which the tap is wrong; if there is none, the error is only in the file.

    For a quantised bundle, `model` has the weights of the bundle: they are on their grid, and quantising them again
    does not change them.
    """
    for step, graph in graphs(finding.probe.role, model, manifest):
        if errs(finding, graph, packs(graph) | manifest.weights, manifest):
            return f"brought in by {step}"
    return "not in a fresh export of the checkpoint: the file was altered, or another version made it; export it again"


def graphs(role: str, model: Model, manifest: Manifest) -> Iterator[tuple[str, ir.Model]]:
    """Yield (step, graph) after each step of the export; the same graph is modified in place."""
    job = Job(copy.deepcopy(model).to(getattr(torch, manifest.dtype)), manifest, role)
    known = dict(model.named_parameters(remove_duplicate=False))
    job.unrounded = lambda name: known[name].detach()
    quantises = bool(manifest.quantization)
    yield from stages(TARGETS[manifest.target], job, lambda graph: forms_in(graph, manifest) if quantises else None)


def forms_in(graph: ir.Model, manifest: Manifest) -> dict[str, Form]:
    """Return the storage form in the bundle for each initializer of a graph that is not quantised yet."""
    named = ((str(value.name), parts_of(value)[0]) for value in graph.graph.initializers.values())
    return {name: manifest.forms[first] for name, first in named if first in manifest.forms}


def errs(finding: Finding, model: ir.Model, table: Mapping[str, Stored], manifest: Manifest) -> bool:
    """Return True if `model` is wrong at the same tap in the same call; False if it has no such tap or does not run."""
    probe = finding.probe
    seen = finding.observation
    graph = ir.from_proto(ir.to_proto(model))  # the next step changes the model itself
    try:
        fresh = make_probe(graph, table, probe.role, manifest, Path(), probe.model, seen.record)
        observation = observe(fresh, seen.case, seen.call, seen.record)
    except Exception:  # an incomplete graph need not run; ONNX Runtime raises other types
        return False
    alike = [
        tap
        for tap in observation.truths
        if tap.side == finding.tap.side and set(tap.modules) & set(finding.tap.modules)
    ]
    return any(not compare_tap(tap, observation, probe.precision).passed for tap in alike)
