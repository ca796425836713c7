"""The graphs in a folder exported by other tools, and their layout, by the file names that the exporters agree on.

Optimum writes graphs next to `config.json`; the converter of transformers.js writes them to `onnx`. The suffix of a
name is the variant: `decoder_model_merged_quantized.onnx` belongs to the variant `quantized`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txport.bundles.bundle import LOOPS
from txport.bundles.graphs import Outline, is_beside, read_outline
from txport.errors import BundleError, UnsupportedError, quoted
from txport.models.names import CONFIG, MANIFEST
from txport.targets.ports import DECODER, ENCODER, MODEL

LATER = "decoder_with_past"  # the role of a graph for all steps except the first
STEMS = ("encoder_model", "decoder_model_merged", "decoder_with_past_model", "decoder_model", "model")
NAME = re.compile(rf"({'|'.join(STEMS)})(?:_(\w+))?\.onnx")
PLACES = ("", "onnx")
HUB, BLOBS = "snapshots", "blobs"  # folders of Hugging Face's cache, where a snapshot contains links to blobs
# Operators that can omit an input between others. ONNX Runtime 1.31 crashes if another operator omits one.
MAY_LEAVE_OUT = frozenset({
    "Attention", "Clip", "Conv", "ConvInteger", "ConvTranspose", "DequantizeLinear", "DynamicQuantizeMatMul",
    "EmbedLayerNormalization", "GRU", "GroupQueryAttention", "LSTM", "MatMulIntegerToFloat", "MatMulNBits",
    "MultiHeadAttention", "Pad", "QAttention", "QLinearConv", "QuantizeLinear", "RNN", "Resize", "RotaryEmbedding",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Slice", "Squeeze", "Trilu",
})  # fmt: skip


Layouts = Mapping[str, Mapping[str, str]]  # layout -> role -> stem of its file
# How exporters split a model. In "apart" the decoder has one graph for the first step and one for later steps. The
# first complete layout is used: exporters keep the separate decoders next to the merged one.
SEQ2SEQ: Layouts = {
    "merged": {ENCODER: "encoder_model", DECODER: "decoder_model_merged"},
    "apart": {ENCODER: "encoder_model", DECODER: "decoder_model", LATER: "decoder_with_past_model"},
    "one": {ENCODER: "encoder_model", DECODER: "decoder_model"},
}
CAUSAL: Layouts = {
    "merged": {DECODER: "decoder_model_merged"},
    "apart": {DECODER: "decoder_model", LATER: "decoder_with_past_model"},
    "one": {DECODER: "decoder_model"},
}
ONE: Layouts = {"one": {MODEL: "model"}}


@dataclass(frozen=True)
class Found:
    """The graphs of one variant: their layout, the variant ("" for no suffix), and the file of each role."""

    layout: str
    variant: str
    files: Mapping[str, str]  # role -> path in the folder


def recognises(folder: Path) -> bool:
    """Whether a folder is not a txport bundle and has a graph with a name that other exporters use."""
    return not (folder / MANIFEST).exists() and any(_graphs(folder, place) for place in PLACES)


def find(folder: Path, variant: str | None) -> Found:
    """Return the graphs of one variant in a folder; without a variant, those that have no suffix.

    Raises `BundleError` if the graphs are not a complete layout, `UnsupportedError` if only other variants exist.
    """
    if not (folder / CONFIG).is_file():
        raise BundleError(f"{folder} has ONNX graphs of another exporter, but no {CONFIG}; download it too")
    there = {place: found for place in PLACES if (found := _graphs(folder, place))}
    if len(there) > 1:
        names = [min(files.values()) for _, files in sorted(there.items())]
        raise BundleError(f"{folder} has graphs in two places, {' and '.join(names)}; remove one of them")
    (files,) = there.values()
    variants = sorted({each for _, each in files})
    wanted = variant or ""
    stems = {stem for stem, each in files if each == wanted}
    if not stems:
        known = ", ".join(f"variant={each!r}" if each else "those without a suffix" for each in variants)
        named = f"no graphs of the variant {quoted(variant)}" if variant else "no graphs without a suffix"
        raise UnsupportedError(f"{folder} has {named}; available: {known}")
    layout, roles = _layout(folder, stems, wanted)
    return Found(layout, wanted, {role: files[stem, wanted] for role, stem in roles.items()})


def _graphs(folder: Path, place: str) -> dict[tuple[str, str], str]:
    """Return the files with known names in a subfolder: (stem, variant) -> path in the folder."""
    inside = folder / place
    if not inside.is_dir():
        return {}
    names = (name for each in inside.iterdir() if (name := NAME.fullmatch(each.name)) and each.is_file())
    return {(name[1], name[2] or ""): f"{place}/{name[0]}".lstrip("/") for name in names}


def _layout(folder: Path, stems: set[str], variant: str) -> tuple[str, Mapping[str, str]]:
    """Return the layout of these files; raise `BundleError` if some are missing or belong to another layout."""
    names = ", ".join(f"{stem}{variant and '_'}{variant}.onnx" for stem in sorted(stems))
    if "model" in stems and len(stems) > 1:
        raise BundleError(f"{folder} mixes layouts: it has {names}; model.onnx must be the only graph")
    known = ONE if "model" in stems else SEQ2SEQ if "encoder_model" in stems else CAUSAL
    lone = "decoder_with_past_model" in stems and stems.isdisjoint({"decoder_model", "decoder_model_merged"})
    fitting = [(name, roles) for name, roles in known.items() if stems.issuperset(roles.values()) and not lone]
    if not fitting:
        texts = (" + ".join(f"{stem}.onnx" for stem in roles.values()) for roles in (*known.values(), *ONE.values()))
        raise BundleError(f"{folder} has {names}, which is not a complete layout; supported: {'; '.join(texts)}")
    return fitting[0]


def require_sound(folder: Path, name: str) -> Outline:
    """Check a graph before a runtime loads it, and return its outline.

    Raises `BundleError` for weights outside of the folder, for missing weights, for loops, and for nodes that omit a
    required input.
    """
    graph = folder / name
    require_inside(folder, graph)
    outline = read_outline(graph)
    for external in sorted(outline.files):
        if not is_beside(external):
            raise BundleError(f"{graph} reads {quoted(external)}, which is not the name of a file in the same folder")
        if not (graph.parent / external).is_file():
            raise BundleError(f"{graph} has weights in {external}, which is missing; download it too")
        require_inside(folder, graph.parent / external)
    for each in sorted(LOOPS & outline.names):
        raise BundleError(f"{graph} has the operator {each}, which may not terminate")
    if outline.functions:
        raise BundleError(f"{graph} has local functions, which may expand without end; export it without them")
    for each in sorted(outline.gaps - MAY_LEAVE_OUT):
        raise BundleError(f"{graph} omits a required input of {each}")
    return outline


def require_inside(folder: Path, file: Path) -> None:
    """Raise `BundleError` for a link to a file outside of the folder, unless it is in Hugging Face's cache."""
    whole = folder.resolve()
    real = file.resolve()
    cache = whole.parent.parent / BLOBS if whole.parent.name == HUB else whole
    if not (real.is_relative_to(whole) or real.is_relative_to(cache)):
        raise BundleError(f"{file} is a link to a file outside of the folder; copy the file into the folder")
