"""Writing and checking graphs that share one weight file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from txport.bundles.manifest import Manifest
from txport.exporters.check import check_graph
from txport.exporters.targets import Job
from txport.exporters.trace import parts_of_trace, sign
from txport.exporters.weights import FILE, leave_out, share_weights, standing_in


def write_graphs(models: dict[str, ir.Model], jobs: Mapping[str, Job], manifest: Manifest, folder: Path) -> Manifest:
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
