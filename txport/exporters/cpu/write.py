"""The cpu target: ONNX Runtime's fused operators, caches written in place, weights in 32, 8 or 4 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txport.bundles.forms import Form
from txport.bundles.manifest import Manifest
from txport.exporters.cpu.calibrate import calibrate
from txport.exporters.cpu.choose import NO_FORMS, choose_forms
from txport.exporters.cpu.columns import find_columns, has_columns
from txport.exporters.cpu.rewrite import ON_CPU
from txport.exporters.fused.rewrite import Matrices, Matrix, tables_of, tags_of
from txport.exporters.fused.write import write_graphs
from txport.exporters.targets import TARGETS, Job
from txport.models.checkpoint import Checkpoint


def write(
    checkpoint: Checkpoint,
    manifest: Manifest,
    folder: Path,
    chosen: Mapping[str, Form] = NO_FORMS,
    texts: Sequence[Sequence[int]] = (),
) -> Manifest:
    """Write and check the graphs and their weights, those in `chosen` in these forms; return the completed manifest.

    `texts`: lists of tokens by which matrices in 4 bits are rounded.
    """
    target = TARGETS[manifest.target]
    source = checkpoint.outline
    target.require(source)
    matrices: Matrices = {}
    shared: dict[str, Any] = {"read": checkpoint.reader, "quantised": matrices, "packed": checkpoint.packed}
    jobs = {role: Job(source, manifest, role, **shared) for role in manifest.graphs}
    models = {role: target.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        target.run(models[role], job)
    forms = None
    if manifest.precision != "fp32":
        tags = tags_of(source)
        tables = tables_of(source)
        may = has_columns(manifest.facts, manifest.rows) and not manifest.weightless
        columns = find_columns(checkpoint) if may else {}
        forms = choose_forms(
            models,
            manifest.precision,
            manifest.rows,
            tags=tags,
            tables=tables,
            chosen=chosen,
            columns=columns,
            packed=checkpoint.packed,
        )
    if texts and forms is not None:
        rounded, record = calibrate(checkpoint, models, forms, texts)
        weights = {name: each for model in models.values() for name, each in model.graph.initializers.items()}
        for name, each in rounded.items():
            tensor = weights[name].const_value
            assert tensor is not None
            matrices[name, each.form] = Matrix(tensor, each.form, ON_CPU.scales_in, rounded=each)
        manifest = dataclasses.replace(manifest, calibrated=record)
    for role, job in jobs.items():
        target.finish(models[role], job, forms)
    return write_graphs(models, jobs, manifest, folder)
