"""Calibration: the matrices in 4 bits are rounded by their inputs for a few texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from txport.bundles.forms import Form
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import converted
from txport.errors import UnsupportedError
from txport.exporters.cpu.columns import run, watching
from txport.exporters.cpu.rounding import change_of_products, round_by_inputs
from txport.exporters.fused.packs import parts_of
from txport.exporters.fused.quantize import Quantized, dequantize, quantize
from txport.exporters.tracing.trace import weight_names
from txport.models.parts import Linear

ROOM = 1 << 30  # bytes of the moments that are in memory at once
DIGITS = 3


class Text(NamedTuple):
    """The tokens of a text, and those that the decoder of an encoder-decoder reads; None for other models."""

    ids: Sequence[int]
    target: Sequence[int] | None = None


class Calibrated(NamedTuple):
    """The rounded matrices by the names in the graphs, and the record for the manifest."""

    matrices: dict[str, Quantized]
    record: dict[str, object]


class Job(NamedTuple):
    """A matrix of the graphs, its form, and the layer whose inputs it reads."""

    weight: ir.Value
    form: Form
    layer: str
    inputs: int


def calibrate(
    checkpoint: Checkpoint,
    models: Mapping[str, ir.Model],
    forms: Mapping[str, Form],
    texts: Sequence[Text],
) -> Calibrated:
    """Round the matrices in 4-bit blocks by the inputs of their layers for `texts`.

    The model runs in float64, so that every machine rounds alike. Raises `UnsupportedError` if no matrix is in such
    blocks.
    """
    jobs = _jobs(checkpoint, models, forms)
    if not jobs:
        raise UnsupportedError("calibrate rounds matrices in 4-bit blocks, and this model has none; leave it out")
    model = converted(checkpoint.model, torch.float64)
    matrices: dict[str, Quantized] = {}
    errors = []
    for some in _in_room(jobs):
        moments: dict[str, Tensor] = {}

        def add(name: str, x: Tensor, moments: dict[str, Tensor] = moments) -> None:
            rows = x.flatten(0, -2)
            moments[name] = moments.get(name, 0) + rows.T @ rows

        layers = {job.layer: model.get_submodule(job.layer) for job in some}
        with torch.inference_mode(), watching(layers, add):
            for ids, target in texts:
                run(model, torch.tensor([list(ids)]), None if target is None else torch.tensor([list(target)]))
        for job in some:
            assert job.weight.const_value is not None
            matrix = job.weight.const_value.numpy()
            seen = moments[job.layer].numpy()
            found = matrices[str(job.weight.name)] = round_by_inputs(matrix, job.form, seen)
            both = (found, quantize(matrix, job.form))
            errors.append([change_of_products(matrix, dequantize(each), seen) for each in both])
    after, before = np.mean(errors, axis=0).tolist()
    error = {name: float(f"{value:.{DIGITS}g}") for name, value in (("error", after), ("error_before", before))}
    tokens = sum(len(text.ids) + len(text.target or ()) for text in texts)
    return Calibrated(matrices, {"texts": len(texts), "tokens": tokens, **error})


def _jobs(checkpoint: Checkpoint, models: Mapping[str, ir.Model], forms: Mapping[str, Form]) -> list[Job]:
    """Return the matrices to round, each once."""
    names = weight_names(checkpoint.outline)
    modules = checkpoint.outline.named_modules()
    layers = {names[id(each.weight)]: (name, each) for name, each in modules if isinstance(each, Linear)}
    found: dict[str, Job] = {}
    for value in (value for model in models.values() for value in model.graph.initializers.values()):
        form = forms.get(str(value.name))
        part = parts_of(value)[0]
        if form is not None and form.zeros and part in layers and part not in checkpoint.packed:
            layer, module = layers[part]
            found.setdefault(str(value.name), Job(value, form, layer, module.in_features))
    return list(found.values())


def _in_room(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs in lists whose moments fit in the room for them; a single one may be larger."""
    some: list[Job] = []
    for job in jobs:
        if some and 8 * (job.inputs**2 + sum(each.inputs**2 for each in some)) > ROOM:
            yield some
            some = []
        some.append(job)
    yield some
