"""Weights that were never in 4 bits, made of weights that once were.

Weights that were published in few bits lie on a grid. A form with the same grid keeps them exactly.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from txport.models.names import WEIGHTS

BLOCK, STEPS, SEED = 32, 15, 0


def write_noisy(folder: Path, target: Path) -> None:
    """Copy a folder of transformers with `noisy` matrices."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(SEED)
    weights = load_file(folder / WEIGHTS)
    save_file(
        {
            name: noisy(weights[name], generator) if weights[name].dim() == 2 else weights[name]
            for name in sorted(weights)
        },
        target / WEIGHTS,
        metadata={"format": "pt"},
    )


def noisy(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Return a matrix with uniform noise as wide as a step of 4 bits between the ends of each block of 32 in a row."""
    found = matrix.clone()
    for block in found.split(BLOCK, dim=1):
        step = (block.amax(1, keepdim=True) - block.amin(1, keepdim=True)) / STEPS
        block += step * (torch.rand(block.shape, generator=generator) - 0.5)
    return found
