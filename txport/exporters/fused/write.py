"""Writing and checking the graphs of the cpu and cuda targets, which share one weight file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from txport.bundles.forms import Form
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import Read, copied
from txport.exporters.check import check_graph
from txport.exporters.cpu.calibrate import Text, calibrate
from txport.exporters.cpu.choose import NO_FORMS
from txport.exporters.cpu.rewrite import ON_CPU
from txport.exporters.exporter import Job, exporter_of
from txport.exporters.fused.rewrite import Matrices, Matrix
from txport.exporters.tracing.trace import parts_of_trace, sign
from txport.exporters.weights import FILE, leave_out, share_weights, standing_in


def write(
    checkpoint: Checkpoint,
    manifest: Manifest,
    folder: Path,
    chosen: Mapping[str, Form] = NO_FORMS,
    texts: Sequence[Text] = (),
) -> Manifest:
    """Write and check the graphs and their weights; return the completed manifest.

    `chosen`: weight -> the form that it gets, where the target has a choice. `texts`: those by which matrices in
    4 bits are rounded. Raises `UnsupportedError` if the model or the precision is not supported.
    """
    exporter = exporter_of(manifest.target)
    source = checkpoint.outline
    exporter.require(source)
    dtype = getattr(torch, manifest.dtype)
    is_whole = dtype == torch.float32
    matrices: Matrices = {}
    shared: dict[str, Any] = {"read": checkpoint.reader, "quantised": matrices, "packed": checkpoint.packed}
    shared |= {"unrounded": None if is_whole else _unrounded(checkpoint)}
    module = source if is_whole else copied(source, dtype)
    jobs = {role: Job(module, manifest, role, **shared) for role in manifest.graphs}
    models = {role: exporter.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        exporter.run(models[role], job)
    forms = None
    if manifest.is_quantised:
        assert exporter.forms_of is not None
        forms = exporter.forms_of(checkpoint, manifest, models, chosen)
    if texts and forms is not None:
        rounded, record = calibrate(checkpoint, models, forms, texts)
        weights = {name: each for model in models.values() for name, each in model.graph.initializers.items()}
        for name, each in rounded.items():
            tensor = weights[name].const_value
            assert tensor is not None
            matrices[name, each.form] = Matrix(tensor, each.form, ON_CPU.scales_in, rounded=each)
        manifest = dataclasses.replace(manifest, calibrated=record)
    for role, job in jobs.items():
        exporter.finish(models[role], job, forms)
    return _write_graphs(models, jobs, manifest, folder)


def _unrounded(checkpoint: Checkpoint) -> Read:
    """Return a function that loads a weight of the checkpoint by any of its names."""
    known = dict(checkpoint.outline.named_parameters(remove_duplicate=False))
    return checkpoint.reader or (lambda name: known[name].detach())


def _write_graphs(models: dict[str, ir.Model], jobs: Mapping[str, Job], manifest: Manifest, folder: Path) -> Manifest:
    """Write and check the graphs, and write equal weights once; return the manifest with the records of the export."""
    parts = {role: dict(parts_of_trace(model)) for role, model in models.items()}
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
    counts = {role: job.counts for role, job in jobs.items() if job.ports.has_weights}
    parts = {role: each for role, each in parts.items() if jobs[role].ports.has_weights}
    return dataclasses.replace(manifest, passes=counts, parts=parts, weights=weights, shared=shared)
