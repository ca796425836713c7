"""Matrices of 4 bits as GPTQ, AWQ and gpt-oss have them: the config that describes them, and their tensors.

GPTQ and AWQ hold, for a linear layer, numbers of 4 bits in int32 and a scale for each group of inputs:

| | `qweight` | `qzeros` | `scales` | `g_idx` |
|---|---|---|---|---|
| GPTQ | (in / 8, out), input 8 i + j in bits 4 j | (groups, out / 8) | (groups, out) | (in,), the group of each input |
| AWQ | (in, out / 8), outputs in `AWQ_ORDER` | (groups, out / 8), in the same order | (groups, out) | |

Zero points are as they are in AWQ and in GPTQ's format `gptq_v2`; those of the older format `gptq` are less by 1.

The experts of gpt-oss are in MXFP4 (Open Compute Project 2023), which no operator of a bundle reads, so they become
float32. The tensors of all experts of a layer are `..._blocks` (experts, out, groups, 16), two numbers of `FP4` in a
byte, the lower bits first, and `..._scales` (experts, out, groups), exponents of 2, plus 127, for groups of 32 inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txport.checkpoints.weights.plan import MOST_LAYERS
from txport.checkpoints.weights.steps import Shape
from txport.checkpoints.weights.values import Grid, GridReader, Weights
from txport.errors import CheckpointError, ConfigError, quoted
from txport.models.config import read_config
from txport.models.names import CONFIG

CONFIG_KEY, BESIDE = "quantization_config", "quantize_config.json"  # the second is an older file of GPTQ
GROUPS = (32, 64, 128)
NONE = f"has no matrix in 4 bits, which its {CONFIG_KEY} describes"
PER_WORD, BITS = 8, 4
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output in each 4 bits of a word
QWEIGHT, QZEROS, SCALES, G_IDX, BIAS = ".qweight", ".qzeros", ".scales", ".g_idx", ".bias"
MXFP4, MXFP4_GROUP, BLOCKS, EXPONENTS = "mxfp4", 32, "_blocks", "_scales"
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4 = torch.tensor([*_HALF, *(-number for number in _HALF)])
FIX = "export the model that it was made from; precision='int8' or precision='int4' quantises it"


@dataclass(frozen=True)
class Layout:
    """How a folder holds its matrices of 4 bits: groups of inputs, the layout, and what is added to zero points."""

    method: str
    group: int
    added: int

    def describe(self) -> str:
        """Return a readable name, such as `GPTQ, 4 bits, groups of 128`."""
        return f"{self.method.upper()}, {BITS} bits, groups of {self.group}"


def read_layout(folder: Path, values: Mapping[str, object]) -> Layout | None:
    """Return the layout that a `config.json` or the file beside it describes; None if they describe none.

    Raises `ConfigError` for another tool, or for a layout that has no exact form in a bundle.
    """
    found = values.get(CONFIG_KEY)
    if not found and (folder / BESIDE).is_file():
        found = {"quant_method": "gptq", **read_config(folder / BESIDE)}
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    if method == MXFP4:
        return Layout(MXFP4, MXFP4_GROUP, 0)
    if not isinstance(found, Mapping) or method not in ("gptq", "awq"):
        raise ConfigError(f"the weights are quantised by another tool ({CONFIG_KEY} {quoted(method or found)}): {FIX}")
    reader = _of_gptq if method == "gptq" else _of_awq
    bits, group, added, strange = reader(found)
    if bits != BITS:
        strange = {"bits": bits}
    elif type(group) is not int or group not in GROUPS:
        strange = {"group_size": group}
    if strange:
        name, value = next(iter(strange.items()))
        need = f"{BITS} bits, groups of {', '.join(map(str, GROUPS))} inputs and the usual layout are"
        raise ConfigError(f"{CONFIG_KEY} of {method} with {name} {quoted(value)} is not supported, only {need}: {FIX}")
    return Layout(method, group, added)


def is_mxfp4(folder: Path) -> bool:
    """Return whether the experts of a folder are in MXFP4."""
    layout = read_layout(folder, read_config(folder / CONFIG))
    return layout is not None and layout.method == MXFP4


Read = tuple[Any, Any, int, dict[str, Any]]  # bits, group, what is added to zero points, unsupported values


def _of_gptq(values: Mapping[str, object]) -> Read:
    kind = values.get("checkpoint_format") or values.get("format") or "gptq"
    strange = {"checkpoint_format": kind} if kind not in ("gptq", "gptq_v2") else {}
    strange |= {name: values[name] for name in ("dynamic", "is_marlin_format") if values.get(name)}
    if values.get("pack_dtype", "int32") != "int32":
        strange |= {"pack_dtype": values["pack_dtype"]}
    return values.get("bits"), values.get("group_size"), int(kind == "gptq"), strange


def _of_awq(values: Mapping[str, object]) -> Read:
    kind = values.get("version") or values.get("checkpoint_format") or values.get("format") or "gemm"
    strange = {} if str(kind).lower() == "gemm" else {"version": kind}
    if values.get("backend", "autoawq") == "llm-awq":
        strange |= {"backend": values["backend"]}
    if values.get("zero_point", True) is not True:
        strange |= {"zero_point": values["zero_point"]}
    return values.get("bits", values.get("w_bit")), values.get("group_size", values.get("q_group_size")), 0, strange


def unpacked(weights: Weights, layout: Layout, place: Path) -> Weights:
    """Return the tensors of a folder with a weight in place of each matrix of 4 bits, and the grids of these.

    A bias of zeros beside one is left out: older tools gave each layer one. Raises `CheckpointError` if a matrix is not
    as the layout describes.
    """
    if layout.method == MXFP4:
        return _experts(weights, place)
    layers = [name.removesuffix(QWEIGHT) for name in weights.shapes if name.endswith(QWEIGHT)]
    if not layers:
        raise CheckpointError(f"{place} {NONE}")
    shapes: dict[str, Shape] = dict(weights.shapes)
    grids = {}
    for layer in layers:
        shape = _shape(weights, layer, layout, place)
        for kind in (QWEIGHT, QZEROS, SCALES, G_IDX):
            shapes.pop(layer + kind, None)
        if layer + BIAS in shapes and not weights[layer + BIAS].any():
            del shapes[layer + BIAS]
        shapes[f"{layer}.weight"] = shape
        grids[f"{layer}.weight"] = GridReader(layout.group, partial(_grid, weights, layer, layout, place))

    def read(name: str) -> Tensor:
        if name not in grids:
            return weights[name]
        codes, scales, zeros = grids[name].read()
        return (codes.float() - zeros.float()) * scales

    return Weights(shapes, read, grids)


def _experts(weights: Weights, place: Path) -> Weights:
    """Return the tensors of a folder with a weight (in, out) for each expert that is in MXFP4."""
    shapes: dict[str, Shape] = dict(weights.shapes)
    experts: dict[str, tuple[str, int]] = {}
    for stem in [name.removesuffix(BLOCKS) for name in weights.shapes if name.endswith(BLOCKS)]:
        blocks, scales = shapes.pop(stem + BLOCKS), shapes.pop(stem + EXPONENTS, ())
        if len(scales) != 3 or blocks != (*scales, MXFP4_GROUP // 2) or 0 in scales or scales[0] > MOST_LAYERS:
            what = f"the experts {quoted(stem)} are not in MXFP4: they have blocks {blocks} and scales {scales}"
            raise CheckpointError(f"{place}: {what}; {FIX}")
        holder, _, role = stem.rpartition(".")
        own = {f"{holder}.{at}.{role}.weight": (stem, at) for at in range(scales[0])}
        shapes |= dict.fromkeys(own, (scales[2] * MXFP4_GROUP, scales[1]))
        experts |= own
    if not experts:
        raise CheckpointError(f"{place} {NONE}")

    def read(name: str) -> Tensor:
        if name not in experts:
            return weights[name]
        stem, at = experts[name]
        blocks, scales = (weights[stem + kind] for kind in (BLOCKS, EXPONENTS))
        if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise CheckpointError(f"{place}: {quoted(stem)} must hold uint8, got {blocks.dtype} and {scales.dtype}")
        codes = torch.stack([blocks[at] & 15, blocks[at] >> 4], -1).flatten(2)  # (out, groups, 32)
        return torch.ldexp(FP4[codes.int()], scales[at, :, :, None].int() - 127).flatten(1).t()

    return Weights(shapes, read)


def _shape(weights: Weights, layer: str, layout: Layout, place: Path) -> Shape:
    """Return the shape (out, in) of a matrix, after a check of the shapes of its tensors."""
    given = {kind: weights.shapes.get(layer + kind, ()) for kind in (QWEIGHT, QZEROS, SCALES)}
    is_matrix = all(len(shape) == 2 for shape in given.values())
    rows, out = given[QWEIGHT] if is_matrix else (0, 0)
    inputs, out = (rows * PER_WORD, out) if layout.method == "gptq" else (rows, out * PER_WORD)
    groups = inputs // layout.group
    expected = {QWEIGHT: given[QWEIGHT], QZEROS: (groups, out // PER_WORD), SCALES: (groups, out)}
    if not is_matrix or inputs % layout.group or out % PER_WORD or given != expected:
        told = ", ".join(f"{kind[1:]} {shape}" for kind, shape in given.items())
        what = f"the matrix {quoted(layer)} is not in {layout.describe()}: it has {told}"
        raise CheckpointError(f"{place}: {what}; {FIX}")
    if f"{layer}.weight" in weights.shapes:
        raise CheckpointError(f"{place} holds {quoted(layer)} in 4 bits and as a weight")
    return out, inputs


def _grid(weights: Weights, layer: str, layout: Layout, place: Path) -> Grid:
    """Read a matrix (out, in) in 4 bits; raise `CheckpointError` for one that has no exact form in a bundle."""
    qweight, qzeros, scales = (weights[layer + kind] for kind in (QWEIGHT, QZEROS, SCALES))
    _require_types(qweight, qzeros, scales, f"{place}: {quoted(layer)}")
    if layout.method == "gptq":
        codes = _numbers(qweight.t(), range(PER_WORD))  # (out, in)
        zeros = _numbers(qzeros, range(PER_WORD)).t()  # (out, groups)
    else:
        codes, zeros = (_numbers(each, AWQ_ORDER).t() for each in (qweight, qzeros))
    order = torch.arange(codes.shape[1]) // layout.group
    if layer + G_IDX in weights.shapes and not torch.equal(weights[layer + G_IDX].long(), order):
        why = "it was quantised in the order of activations (desc_act), so that groups are not of consecutive inputs"
        raise CheckpointError(f"{place}: {quoted(layer)} has no form in a bundle: {why}; {FIX}")
    if layout.added and bool((zeros == 15).any()):
        why = "which the tools that run the format 'gptq' read as 0 or as 16"
        raise CheckpointError(f"{place}: {quoted(layer)} has a zero point of 15 in the file, {why}; {FIX}")
    zeros = zeros + layout.added
    return Grid(codes, scales.float().t()[:, order], zeros[:, order])


def _require_types(qweight: Tensor, qzeros: Tensor, scales: Tensor, what: str) -> None:
    if any(each.dtype != torch.int32 for each in (qweight, qzeros)) or not scales.is_floating_point():
        types = ", ".join(str(each.dtype).removeprefix("torch.") for each in (qweight, qzeros, scales))
        raise CheckpointError(f"{what} must hold int32, int32 and floating-point scales, got {types}")


def _numbers(words: Tensor, order: Collection[int]) -> Tensor:
    """Return the numbers of 4 bits in the last axis of int32: those in each word are at the places in `order`."""
    shifts = BITS * torch.tensor(sorted(range(PER_WORD), key=list(order).__getitem__), dtype=torch.int32)
    return ((words[..., None] >> shifts) & 15).flatten(-2).to(torch.uint8)
