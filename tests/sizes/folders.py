"""Checkpoint folders of shapes, with seeded random weights: `write_folder(SHAPES["bert-base"].short(), folder)`.

No PyTorch is needed, and no more memory than a block of numbers takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tests.sizes.shapes import Shape
from tests.sizes.tensors import tensors_of

BLOCK = 1 << 22  # numbers that are drawn at once
BIAS = 0.02  # standard deviation of biases
TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}  # by `torch_dtype`: name in safetensors, and bytes a number


def write_folder(shape: Shape, folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint of a shape into a folder, which is made if it does not exist; return the folder.

    There is no tokenizer: texts are numbers.
    """
    for name, values in {"config.json": shape.config, **shape.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=2), encoding="utf-8")
    write_weights(folder / "model.safetensors", shape.config, seed)
    return folder


def write_weights(path: Path, config: Mapping[str, Any], seed: int = 0) -> None:
    """Write a safetensors file with random weights, block by block."""
    shapes = tensors_of(config)
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        _write_header(file, shapes, config["torch_dtype"])
        for name, shape in shapes.items():
            for block in _draw(name, shape, config, rng):
                file.write(_bytes_of(block, config["torch_dtype"]))


def _write_header(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    kind, size = TYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + size * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def _draw(name: str, shape: tuple[int, ...], config: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Any]:
    """Yield the numbers of a tensor in blocks: norms are 1, all else is uniform."""
    count = math.prod(shape)
    is_norm = len(shape) == 1 and name.endswith(".weight")
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        if is_norm:
            yield np.full(size, 0 if config["model_type"].startswith("gemma") else 1, np.float32)
        else:
            yield (2 * rng.random(size, np.float32) - 1) * np.float32(math.sqrt(3) * _deviation(name, shape, config))


def _deviation(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> float:
    """Return the standard deviation with which a product has the variance of its input.

    T5 does not divide attention scores by the root of the head size; its queries are smaller instead.
    """
    if name.endswith("bias"):
        return BIAS
    deviation = math.prod(shape[1:]) ** -0.5
    return deviation * config["d_kv"] ** -0.5 if name.endswith("Attention.q.weight") else deviation


def _bytes_of(block: Any, dtype: str) -> bytes:
    """Return numbers as they are stored; bfloat16 is rounded to nearest, ties to even."""
    if dtype == "float32":
        return bytes(block.astype("<f4", copy=False).data)
    bits = block.view(np.uint32)
    return bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").data)
