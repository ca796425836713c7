"""The cuda target: weights and caches in one floating-point dtype or quantised, and graphs that move a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from txport.bundles.manifest import Manifest, is_quantised
from txport.errors import UnsupportedError
from txport.exporters.cuda.quantize import ALIGNED, LEAST_BLOCK, choose_forms
from txport.exporters.fused.rewrite import Matrices, tables_of, tags_of
from txport.exporters.fused.write import write_graphs
from txport.exporters.targets import TARGETS, Job
from txport.models.checkpoint import Checkpoint
from txport.models.weights.copies import copied
from txport.models.weights.streamed import Read


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> Manifest:
    """Write and check the graphs and their weights; return the completed manifest.

    Raises `UnsupportedError` if the model or the precision is not supported.
    """
    target = TARGETS[manifest.target]
    dtype = getattr(torch, manifest.dtype)
    source = checkpoint.outline
    target.require(source)
    module = source if dtype == torch.float32 else copied(source, dtype)
    matrices: Matrices = {}
    shared: dict[str, Any] = {"read": checkpoint.reader, "quantised": matrices, "packed": checkpoint.packed}
    shared |= {"unrounded": _unrounded(checkpoint)}
    jobs = {role: Job(module, manifest, role, **shared) for role in manifest.graphs}
    models = {role: target.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        target.run(models[role], job)
    forms = None
    if is_quantised(manifest.target, manifest.precision):
        forms = choose_forms(models, manifest.precision, tables_of(source), tags_of(source), checkpoint.packed)
        if not forms:
            need = f"{manifest.precision} on cuda needs matrices of whole blocks of {LEAST_BLOCK} inputs"
            raise UnsupportedError(
                f"{need} and {ALIGNED} outputs, and this model has none; export it with precision='fp16'"
            )
    for role, job in jobs.items():
        target.finish(models[role], job, forms)
    return write_graphs(models, jobs, manifest, folder)


def _unrounded(checkpoint: Checkpoint) -> Read:
    """Return a function that loads a weight of the checkpoint by any of its names."""
    known = dict(checkpoint.outline.named_parameters(remove_duplicate=False))
    return checkpoint.reader or (lambda name: known[name].detach())
