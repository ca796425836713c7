"""The export step that introduced an error: the exporter is run again, and its graph is probed after each step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from txport.bundles.forms import Form, Stored
from txport.bundles.manifest import Manifest
from txport.exporters.fused.packs import packs, parts_of
from txport.exporters.targets import TARGETS, Job, stages
from txport.exporters.weights import FILE, INLINE_BELOW, WeightFile, outside
from txport.models.checkpoint import Checkpoint
from txport.models.weights.copies import copied
from txport.models.weights.plan import first_names
from txport.proof.bisect.probe import Finding, Observation, compare_tap, make_probe, observe
from txport.proof.bisect.taps import OUT, Tap

Array = NDArray[Any]


def origin(finding: Finding, held: Checkpoint, manifest: Manifest) -> str:
    """Describe the first step after which the tap is wrong; if there is none, the error is only in the file.

    For a quantised bundle, `held` has the weights of the bundle: they are on their grid, and quantising them again
    does not change them.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / FILE).open("wb") as file:
        weights = WeightFile(file)
        for step, graph in graphs(finding.probe.role, held, manifest):
            fresh = _outside(graph, weights, Path(folder))
            file.flush()
            if errs(finding, fresh, packs(graph) | manifest.weights, manifest, Path(folder)):
                return f"brought in by {step}"
    return "not in a fresh export of the checkpoint: the file was altered, or another version made it; export it again"


def _outside(graph: ir.Model, weights: WeightFile, folder: Path) -> ir.Model:
    """Return a copy of a graph whose weights are in a file; the next step changes the graph itself."""
    other = graph.clone()
    for value in other.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= INLINE_BELOW:
            value.const_value = outside(tensor, str(value.name), folder, FILE, weights.place(str(value.name), tensor))
    return other


def graphs(role: str, held: Checkpoint, manifest: Manifest) -> Iterator[tuple[str, ir.Model]]:
    """Yield (step, graph) after each step of the export; the same graph is modified in place."""
    first = first_names(held.outline)
    model = copied(held.outline, getattr(torch, manifest.dtype))
    job = Job(model, manifest, role, read=held.reader, unrounded=lambda name: held.tensor(first[name]))
    quantises = bool(manifest.quantization)
    yield from stages(TARGETS[manifest.target], job, lambda graph: forms_in(graph, manifest) if quantises else None)


def forms_in(graph: ir.Model, manifest: Manifest) -> dict[str, Form]:
    """Return the storage form in the bundle for each initializer of a graph that is not quantised yet."""
    named = ((str(value.name), parts_of(value)[0]) for value in graph.graph.initializers.values())
    return {name: manifest.forms[first] for name, first in named if first in manifest.forms}


def errs(finding: Finding, graph: ir.Model, table: Mapping[str, Stored], manifest: Manifest, folder: Path) -> bool:
    """Return True if `graph` is wrong at the same tap in the same call; False if it has no such tap or does not run."""
    probe = finding.probe
    seen = finding.observation
    try:
        fresh = make_probe(graph, table, probe.role, manifest, folder, probe.model, seen.record)
        observation = observe(fresh, seen.case, seen.call, seen.record)
    except Exception:  # an incomplete graph need not run; ONNX Runtime raises other types
        return False
    alike = [
        tap
        for tap in observation.truths
        if tap.side == finding.tap.side and set(tap.modules) & set(finding.tap.modules)
    ]
    if finding.tap.form is not None:
        plain = {tap: _unrounded(tap, observation) for tap in alike if tap.form is None and tap.side == OUT}
        observation = replace(observation, truths={**observation.truths, **plain})
    # until they are quantised, weights are rounded to the bundle's type, which is coarser than the type of the probe
    coarse = replace(fresh, precision=manifest.arithmetic) if finding.tap.form is not None else fresh
    return any(not compare_tap(tap, observation, coarse if tap.form is None else fresh).passed for tap in alike)


@torch.inference_mode()
def _unrounded(tap: Tap, observation: Observation) -> Array:
    """Return a product with the activations that are not rounded, for a graph whose weights are not quantised yet."""
    products = []
    for call in (observation.record[name][tap.nth] for name in tap.modules):
        assert isinstance(call.part, nn.Linear)
        products.append(nn.functional.linear(call.tensor, call.part.weight, call.part.bias))
    found: Array = torch.cat(products, -1).detach().numpy().reshape(observation.truths[tap].shape)
    return found
