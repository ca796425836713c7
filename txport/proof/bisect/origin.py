"""Which step of the export brought an error in: the exporter is run again, and its graph probed after each step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir
import torch

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.bundles.ports import STEP, shortens
from txport.exporters.choose import tables_of
from txport.exporters.conditional import make_conditional
from txport.exporters.fused import FUSED, FUSED_FORMS
from txport.exporters.fusions import parts_of
from txport.exporters.graphs import PORTABLE
from txport.exporters.operators import FORMS
from txport.exporters.passes import PASSES
from txport.exporters.rewrite import apply_forms, packs
from txport.exporters.top import add_top, without_top
from txport.exporters.trace import trace
from txport.models.transformer import Transformer
from txport.proof.bisect.probe import Finding, compare_tap, make_probe, observe

MODULES = {"portable": (PORTABLE, FORMS), "cpu": (FUSED, FUSED_FORMS)}
TRACED, OPTIONAL = "the trace of the model", "the branch for attention that is asked for"
QUANTIZED, TOPPED = "quantisation", "the choice of the best tokens"


def origin(finding: Finding, model: Transformer, manifest: Manifest) -> str:
    """The first step after which the place errs, in words; where none does, the fault is in the file alone.

    `model` has the weights that a quantised bundle holds: they are on their grid, and quantising changes them no more.
    """
    for step, graph in stages(finding.probe.role, model, manifest):
        if errs(finding, graph, packs(graph) | manifest.weights, manifest):
            return f"brought in by {step}"
    return "not in a fresh export of the checkpoint: the file was altered, or another version made it; export it again"


def stages(role: str, model: Transformer, manifest: Manifest) -> Iterator[tuple[str, ir.Model]]:
    """A graph as each step of the export leaves it; one model, changed in place."""
    ports = manifest.graphs[role]
    traced = without_top(ports) if manifest.target == "cpu" else ports
    module = copy.deepcopy(model).to(getattr(torch, manifest.dtype))
    modules, forms = MODULES[manifest.target]
    graph = trace(modules[role](module), traced, manifest.opset, forms)
    yield TRACED, graph
    for name, run in PASSES[manifest.target].items():
        run(graph, traced)
        yield f"the pass {name!r}", graph
    if manifest.target == "cpu" and role == STEP:
        make_conditional(graph, ports)
        yield OPTIONAL, graph
    if manifest.quantization:
        apply_forms(graph, forms_in(graph, manifest), tables_of(model))
        yield QUANTIZED, graph
    if manifest.target == "cpu" and role == STEP:
        add_top(graph, ports, shorten=shortens(manifest.config, manifest.precision))
        yield TOPPED, graph


def forms_in(graph: ir.Model, manifest: Manifest) -> dict[str, Form]:
    """The form that a bundle has for each initializer of a graph that is not quantised yet."""
    named = ((str(value.name), parts_of(value)[0]) for value in graph.graph.initializers.values())
    return {name: manifest.forms[first] for name, first in named if first in manifest.forms}


def errs(finding: Finding, model: ir.Model, table: Mapping[str, Stored], manifest: Manifest) -> bool:
    """Whether a graph errs where another does, in the same call; False where it has no such place, or does not run."""
    probe, seen = finding.probe, finding.observation
    content = ir.to_proto(model)
    try:
        fresh = make_probe(lambda: ir.from_proto(content), table, probe.role, probe.precision, manifest.dtype, Path())
        observation = observe(fresh, seen.case, seen.call, seen.record)
    except Exception:  # half-way, a graph need not run, and ONNX Runtime has errors of its own
        return False
    alike = [
        tap
        for tap in observation.truths
        if tap.side == finding.tap.side and set(tap.modules) & set(finding.tap.modules)
    ]
    return any(not compare_tap(tap, observation, probe.precision).passed for tap in alike)
