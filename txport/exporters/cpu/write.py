"""The cpu target: ONNX Runtime's fused operators, caches written in place, weights in 32, 8 or 4 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx_ir as ir

from txport.bundles.manifest import Manifest
from txport.exporters.check import check_graph
from txport.exporters.cpu.choose import choose_forms, tables_of, tags_of
from txport.exporters.cpu.rewrite import Matrices
from txport.exporters.targets import TARGETS, Job
from txport.exporters.trace import parts_of_trace, sign
from txport.exporters.weights import FILE, leave_out, share_weights, standing_in
from txport.models.checkpoint import Checkpoint


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path, keep: Collection[str] = ()) -> Manifest:
    """Write the graphs, checked, and their weights, those in `keep` in fp32; -> the manifest with what was done."""
    target, source = TARGETS[manifest.target], checkpoint.outline
    target.require(source)
    matrices: Matrices = {}
    jobs = {role: Job(source, manifest, role, read=checkpoint.reader, quantised=matrices) for role in manifest.graphs}
    models = {role: target.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        target.run(models[role], job)
    parts = {role: dict(parts_of_trace(model)) for role, model in models.items()}
    forms = None
    if manifest.precision != "fp32":
        tags, tables = tags_of(source), tables_of(source)
        forms = choose_forms(models, manifest.precision, manifest.rows, tags=tags, tables=tables, keep=keep)
    for role, job in jobs.items():
        target.finish(models[role], job, forms)
    shared: dict[str, dict[str, Any]] = {}
    if manifest.weightless:
        leave_out(models.values(), folder / "onnx", FILE)
    else:
        shared = share_weights(models, folder / "onnx")
    for role, model in models.items():
        sign(model, role, manifest)
        path = folder / manifest.graphs[role].file
        ir.save(model, path)
        with standing_in(folder / "onnx" / FILE, manifest.weightless):
            check_graph(path, manifest.graphs[role], manifest)
    weights = {name: stored for job in jobs.values() for name, stored in job.weights.items()}
    counts = {role: job.counts for role, job in jobs.items()}
    return dataclasses.replace(manifest, passes=counts, parts=parts, weights=weights, shared=shared)
