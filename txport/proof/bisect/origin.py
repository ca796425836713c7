"""Which step of the export brought an error in: the exporter is run again, and its graph probed after each step."""

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
    """The first step after which the place errs, in words; where none does, the fault is in the file alone.

    `model` has the weights that a quantised bundle holds: they are on their grid, and quantising changes them no more.
    """
    for step, graph in graphs(finding.probe.role, model, manifest):
        if errs(finding, graph, packs(graph) | manifest.weights, manifest):
            return f"brought in by {step}"
    return "not in a fresh export of the checkpoint: the file was altered, or another version made it; export it again"


def graphs(role: str, model: Model, manifest: Manifest) -> Iterator[tuple[str, ir.Model]]:
    """A graph as each step of the export leaves it; one model, changed in place."""
    job = Job(copy.deepcopy(model).to(getattr(torch, manifest.dtype)), manifest, role)
    known = dict(model.named_parameters(remove_duplicate=False))
    job.unrounded = lambda name: known[name].detach()
    quantises = bool(manifest.quantization)
    yield from stages(TARGETS[manifest.target], job, lambda graph: forms_in(graph, manifest) if quantises else None)


def forms_in(graph: ir.Model, manifest: Manifest) -> dict[str, Form]:
    """The form that a bundle has for each initializer of a graph that is not quantised yet."""
    named = ((str(value.name), parts_of(value)[0]) for value in graph.graph.initializers.values())
    return {name: manifest.forms[first] for name, first in named if first in manifest.forms}


def errs(finding: Finding, model: ir.Model, table: Mapping[str, Stored], manifest: Manifest) -> bool:
    """Whether a graph errs where another does, in the same call; False where it has no such place, or does not run."""
    probe = finding.probe
    seen = finding.observation
    graph = ir.from_proto(ir.to_proto(model))  # the next step changes the model itself
    try:
        fresh = make_probe(graph, table, probe.role, manifest, Path(), probe.model, seen.record)
        observation = observe(fresh, seen.case, seen.call, seen.record)
    except Exception:  # half-way, a graph need not run, and ONNX Runtime has errors of its own
        return False
    alike = [
        tap
        for tap in observation.truths
        if tap.side == finding.tap.side and set(tap.modules) & set(finding.tap.modules)
    ]
    return any(not compare_tap(tap, observation, probe.precision).passed for tap in alike)
