"""Matrices of 4 bits that another tool has quantised, and how a model's are made from those of the files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from txport.checkpoints.weights.plan import Plan
from txport.checkpoints.weights.values import Grid, Value, Weights
from txport.errors import CheckpointError, quoted
from txport.system.arrays import Array


@dataclass(frozen=True)
class Packed:
    """A matrix (out, in) in 4 bits: a weight is (code - zero point) * scale, in float32.

    `codes` (out, in) are from 0 to 15; `scales` and `zeros` (out, groups) belong to groups of consecutive inputs.
    """

    codes: Array
    scales: Array
    zeros: Array


class PackedReader(NamedTuple):
    """Reads a matrix of a model in 4 bits, in groups of `group` inputs.

    `read` raises `CheckpointError` if the rules of the checkpoint do more than move whole groups.
    """

    group: int
    read: Callable[[], Packed]


def packed_weights(made: Plan, weights: Weights) -> dict[str, PackedReader]:
    """Return the matrices of a model that are made only of matrices in 4 bits, by their first names."""
    found = {}
    for name in made.fitting if weights.grids else ():
        value = made.made[name][0].value
        groups = {weights.grids[each].group if each in weights.grids else None for each in value.names()}
        if len(groups) == 1 and (group := groups.pop()) is not None:
            found[name] = PackedReader(group, partial(_read, name, value, weights, group))
    return found


def _read(name: str, value: Value, weights: Weights, group: int) -> Packed:
    """Make the codes, scales and zero points of a matrix by the steps that make its weights."""
    grids = {each: weights.grids[each].read() for each in value.names()}
    codes, scales, zeros = (
        value.read({each: grid[at] for each, grid in grids.items()}).contiguous() for at in range(len(Grid._fields))
    )
    is_moved = torch.equal((codes.float() - zeros.float()) * scales, value.read(weights).float())
    grouped = [each.reshape(len(each), -1, group) for each in (scales, zeros)] if codes.shape[1] % group == 0 else []
    if not is_moved or not grouped or any((each != each[..., :1]).any() for each in grouped):
        why = f"its rules do more than move whole groups of {group} inputs"
        raise CheckpointError(f"{quoted(name)} can't be read in 4 bits as its file has it: {why}")
    scales, zeros = (each[..., 0] for each in grouped)
    return Packed(codes.numpy().astype(np.uint8), scales.numpy(), zeros.numpy().astype(np.uint8))
