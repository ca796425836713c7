"""The quantised matrices of a bundle, ordered by the error that rounding causes in their matrix products.

Rounding to a grid with step s has the root-mean-square error s / sqrt(12); the error of a product with x is
sqrt(sum((s x)^2) / 12). The finest possible grid follows from the largest weight of a row or block. A matrix on a
coarser grid is badly quantised. A matrix whose largest weights are much larger than the rest is not suited to its
number of bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.streamed import MOST_ROOM
from txport.exporters.cpu.columns import watching
from txport.exporters.weights import graph_weights, held_weights
from txport.models.model import Model
from txport.proof.parity.weights import COARSE, finest
from txport.system.arrays import Array
from txport.system.terminal import percent

ROWS_ENOUGH, TINY = 128, 1e-30
ILL_SUITED, BEYOND_OTHERS = 0.1, 5.0  # minimum relative error; minimum ratio to the median error


@dataclass(frozen=True)
class Rounding:
    """One quantised matrix: its error, and the error on the finest grid, both as relative RMS of the product."""

    name: str
    form: Form
    error: float
    possible: float

    @property
    def coarseness(self) -> float:
        """The ratio of the error to the error on the finest grid."""
        return self.error / max(self.possible, 1e-30)


def roundings(bundle: Bundle, checkpoint: Checkpoint, inputs: Mapping[str, Array]) -> list[Rounding]:
    """Return every quantised matrix of a bundle, largest error first; `inputs` are (rows, in) by module name."""
    first = first_names(checkpoint.outline)
    read = {f"{name}.weight": rows for name, rows in inputs.items()}
    found: dict[str, Rounding] = {}
    for role in bundle.manifest.driven:
        for held in held_weights(graph_weights(bundle.file(role)), bundle.manifest.weights):
            if held.form is not None and held.name not in found:
                expected = checkpoint.tensor(first[held.name]).numpy()
                found[held.name] = _rounding(held.name, held.form, held.values, expected, read.get(held.name))
    return sorted(found.values(), key=lambda each: -each.error)


def _rounding(name: str, form: Form, held: Array, expected: Array, x: Array | None) -> Rounding:
    """Compute the errors of one matrix (out, in) for inputs `x` (rows, in); None: the identity matrix."""
    x = np.eye(expected.shape[1]) if x is None else x.astype(np.float64)
    count = max(1, MOST_ROOM // expected.shape[1])
    sums = np.zeros(3)  # of the squares of the products, of their errors, and of the possible errors
    for start in range(0, len(expected), count):
        right, used = (each[start : start + count].astype(np.float64) for each in (expected, held))
        sums[:2] += [np.square(x @ each.T).sum() for each in (right, used - right)]
        sums[2] += (np.square(x) @ np.square(finest(right, form)).T).sum() / 12
    size, error, possible = np.sqrt(sums / (len(x) * len(expected))).tolist()
    return Rounding(name, form, error / max(size, TINY), possible / max(size, TINY))


def badly_quantised(found: Sequence[Rounding]) -> Rounding | None:
    """Return the matrix on the coarsest grid, else a matrix not suited to its bits; None if there is neither."""
    coarsest = max(found, key=lambda each: each.coarseness)
    if coarsest.coarseness > COARSE:
        return coarsest
    return next((each for each in found if each.error > max(ILL_SUITED, BEYOND_OTHERS * _middle(each, found))), None)


def _middle(one: Rounding, found: Sequence[Rounding]) -> float:
    """Return the median error of matrices with the same number of bits; 4 bits have 16 times the error of 8."""
    return float(np.median([each.error for each in found if each.form.bits == one.form.bits]))


def describe_rounding(bad: Rounding, found: Sequence[Rounding]) -> str:
    """Describe the error of a matrix, next to the worst of the others."""
    others = [each for each in found if each is not bad]
    beside = f"; the worst of the others, {others[0].name}, by {percent(others[0].error)}" if others else ""
    if bad.coarseness > COARSE:
        why = f"{bad.coarseness:.3g} times what {bad.form.describe()} leave"
    else:
        why = f"a few large weights leave too few steps of {bad.form.describe()} to the rest"
    return f"rounding {bad.name} changes its product by {percent(bad.error)}, {why}{beside}"


def linear_inputs(model: Model, calls: Iterable[object]) -> dict[str, Array]:
    """Return the inputs of each linear layer while `calls` are replayed: (rows, in), at most `ROWS_ENOUGH` rows."""
    found: dict[str, list[Array]] = {}

    def see(name: str, x: Tensor) -> None:
        rows = found.setdefault(name, [])
        room = ROWS_ENOUGH - sum(map(len, rows))
        if room > 0:
            rows.append(x.reshape(-1, x.shape[-1])[:room].to(torch.float32, copy=True).numpy())

    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    with watching(linear, see):
        for _ in calls:
            pass
    return {name: np.concatenate(rows) for name, rows in found.items()}
