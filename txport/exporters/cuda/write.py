"""The cuda target: weights and caches in one floating point type, and the graphs that move what stays on the device."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from txport.bundles.manifest import Manifest
from txport.exporters.fused.write import write_graphs
from txport.exporters.targets import TARGETS, Job
from txport.models.checkpoint import Checkpoint


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> Manifest:
    """Write the graphs, checked, and their weights; -> the manifest with what was done."""
    target, dtype = TARGETS[manifest.target], getattr(torch, manifest.dtype)
    target.require(checkpoint.outline)
    module = checkpoint.outline if dtype == torch.float32 else copy.deepcopy(checkpoint.outline).to(dtype)
    jobs = {role: Job(module, manifest, role, read=checkpoint.reader) for role in manifest.graphs}
    models = {role: target.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        target.run(models[role], job)
    return write_graphs(models, jobs, manifest, folder)
