"""The cpu target: ONNX Runtime's fused operators, caches written in place, weights in 32, 8 or 4 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from txport.bundles.forms import Stored
from txport.bundles.manifest import Manifest
from txport.bundles.ports import STEP, shortens
from txport.exporters.check import check_graph
from txport.exporters.choose import choose_forms, tables_of, tags_of
from txport.exporters.conditional import make_conditional
from txport.exporters.fused import FUSED, FUSED_FORMS, require_fusable
from txport.exporters.fusions import check_fusions
from txport.exporters.passes import run_passes
from txport.exporters.rewrite import apply_forms, packs
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
    weights = {name: stored for model in models.values() for name, stored in packs(model).items()}
    if manifest.precision != "fp32":
        weights = _quantize(models, manifest, checkpoint, keep, counts)
    shorten = shortens(config, manifest.precision)
    add_top(models[STEP], manifest.graphs[STEP], shorten=shorten)
    counts[STEP]["screening"] = int(shorten)
    shared = share_weights(models, folder / "onnx")
    for role, model in models.items():
        sign(model, role, manifest)
        path = folder / manifest.graphs[role].file
        ir.save(model, path)
        check_graph(path, manifest.graphs[role], manifest)
    return dataclasses.replace(manifest, passes=counts, weights=weights, shared=shared)


def _quantize(
    models: dict[str, ir.Model],
    manifest: Manifest,
    checkpoint: Checkpoint,
    keep: Collection[str],
    counts: dict[str, dict[str, int]],
) -> dict[str, Stored]:
    """Put every matrix into its form, and count them; -> what the initializers are."""
    tags, tables = tags_of(checkpoint.model), tables_of(checkpoint.model)
    forms = choose_forms(models, manifest.precision, manifest.rows, tags=tags, tables=tables, keep=keep)
    weights: dict[str, Stored] = {}
    for role, model in models.items():
        found = apply_forms(model, forms, tables)
        counts[role]["quantize"] = sum(stored.is_quantised for stored in found.values())
        weights |= {**packs(model), **found}
    return weights
