"""Checkpoints with a tokenizer's files beside a model that has so many tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES, TOKENIZERS
from txport.models.names import CONFIG, GENERATION, SPELLINGS, WEIGHTS

SIZE = 24  # of the vocabularies of the models there


def grown(folder: Path, family: str, tokenizer: str, size: int, **ids: int) -> Path:
    """A model of a family with a vocabulary of `size`, random where it was none, and the files of a tokenizer."""
    shutil.copytree(FAMILIES / family, folder, ignore=shutil.ignore_patterns("expected.npz"))
    for name in (each for each in (CONFIG, GENERATION) if (folder / each).is_file()):
        values: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
        values |= {name: size for name in ("vocab_size", "decoder_vocab_size") if name in values}
        values |= {"max_position_embeddings": 400} if family == "llama" and name == CONFIG else {}
        (folder / name).write_text(json.dumps(values | ids), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / WEIGHTS)
    for name, tensor in weights.items():
        for dim in range(tensor.dim()):
            if tensor.shape[dim] == SIZE:
                shape = [*tensor.shape[:dim], size - SIZE, *tensor.shape[dim + 1 :]]
                weights[name] = torch.cat([tensor, 0.5 * torch.randn(shape, generator=generator)], dim)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    for name in SPELLINGS:
        if (TOKENIZERS / tokenizer / name).is_file():
            shutil.copyfile(TOKENIZERS / tokenizer / name, folder / name)
    return folder
