"""Which numbers of a causal model are smoothed, and by how much.

In blocks of 8 bits, the largest number of a block decides what the others keep. A few outputs of each norm are much
larger than the others, in all texts, so the weights take over a part of their size (docs/few-bits.md).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.smoothing import Smoothing
from txport.checkpoints.weights.streamed import converted
from txport.exporters.cpu.columns import random_inputs, run, watching
from txport.models.smoothing import groups_of

MOST = 8  # largest exponent of a factor
LEAST = 1e-6  # smallest size of a number, relative to the mean of the sizes


def find_smoothing(checkpoint: Checkpoint, manifest: Manifest) -> tuple[Smoothing, ...]:
    """Return the factors of a causal model whose rows are independent of each other; of others none.

    A factor is sqrt(a / w), divided by the geometric mean of all, and rounded to a power of two. `a` is the size of a
    number: its RMS over random tokens, relative to the RMS of all numbers of its token. `w` is the RMS of the weights
    that it is multiplied with. The model runs in float64, so that every machine finds the same.
    """
    is_free = manifest.rows is None and manifest.facts.is_causal and not manifest.weightless
    if not (is_free and manifest.is_quantised) or checkpoint.packed:
        return ()
    outline = checkpoint.outline
    groups = {group.reader: group for group in groups_of(outline)}
    if not groups:
        return ()
    squares: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        shares = x.flatten(0, -2).square()
        shares /= shares.mean(1, keepdim=True).clamp_min_(torch.finfo(shares.dtype).tiny)
        squares[name] = squares.get(name, 0) + shares.sum(0)

    model = converted(checkpoint.model, torch.float64)
    with torch.inference_mode(), watching({name: model.get_submodule(name) for name in groups}, add):
        run(model, *random_inputs(outline.facts))
    found = []
    for reader, group in groups.items():
        read = map(checkpoint.tensor, group.read_by)
        norms = [torch.linalg.vector_norm(each, dim=0, dtype=torch.float64) for each in read]
        weights = torch.stack(norms).square().sum(0)
        found.append(Smoothing(group.made_by, group.read_by, _exponents(squares[reader], weights)))
    return tuple(found)


def _exponents(numbers: Tensor, weights: Tensor) -> bytes:
    """Return the exponents of the factors, from sums of squares of numbers and of weights (D,)."""
    size, weight = (torch.log2(each.clamp_min(LEAST**2 * float(each.mean()) or 1.0)) / 2 for each in (numbers, weights))
    exact = ((size - weight) / 2).numpy()
    return np.clip(np.rint(exact - exact.mean()), -MOST, MOST).astype(np.int8).tobytes()
