"""The cpu target: ONNX Runtime's fused operators, caches written in place, weights in 32, 8 or 4 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from txport.bundles.manifest import Manifest
from txport.bundles.ports import STEP, shortens
from txport.exporters.check import check_graph
from txport.exporters.conditional import make_conditional
from txport.exporters.fused import FUSED, FUSED_FORMS, require_fusable
from txport.exporters.fusions import check_fusions
from txport.exporters.passes import run_passes
from txport.exporters.quantize import apply_forms, choose_forms
from txport.exporters.top import add_top, without_top
from txport.exporters.trace import sign, trace
from txport.exporters.weights import share_weights
from txport.models.checkpoint import Checkpoint


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path, keep: Collection[str] = ()) -> Manifest:
    """Write the graphs, checked, and their weights, those in `keep` in fp32; -> the manifest with what was done."""
    config = checkpoint.config
    require_fusable(config)
    traced = {role: without_top(graph) for role, graph in manifest.graphs.items()}
    models = {
        role: trace(FUSED[role](checkpoint.model), graph, manifest.opset, FUSED_FORMS) for role, graph in traced.items()
    }
    counts = {role: run_passes(model, traced[role], manifest.target) for role, model in models.items()}
    counts[STEP]["make attention conditional"] = make_conditional(models[STEP], manifest.graphs[STEP])
    for role, model in models.items():
        check_fusions(model, config, role)
    forms: dict[str, dict[str, str]] = {}
    if manifest.precision != "fp32":
        forms = choose_forms(models, manifest.precision, manifest.rows, keep)
        for role, model in models.items():
            counts[role]["quantize"] = apply_forms(model, forms[role])
    shorten = shortens(config, manifest.precision)
    add_top(models[STEP], manifest.graphs[STEP], shorten=shorten)
    counts[STEP]["screening"] = int(shorten)
    shared = share_weights(models, folder / "onnx")
    for role, model in models.items():
        sign(model, role, manifest)
        path = folder / manifest.graphs[role].file
        ir.save(model, path)
        check_graph(path, manifest.graphs[role], manifest)
    quantization = {name: form for each in forms.values() for name, form in each.items()}
    return dataclasses.replace(manifest, passes=counts, quantization=quantization, shared=shared)
