"""Reading a folder exported by other tools; the ports of its graphs must agree with its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from txport.bundles.bundle import Bundle
from txport.bundles.declared import read_signature
from txport.bundles.foreign import files
from txport.bundles.foreign.contracts import cache_dims, contract, differences, held
from txport.bundles.foreign.facts import CAUSAL, facts_of, is_of
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.foreign.values import Values
from txport.bundles.graphs import Outline
from txport.checkpoints.pooling import pooling_defaults
from txport.errors import BundleError, CheckpointError, ConfigError
from txport.models.facts import Facts
from txport.models.generation import Defaults, search_defaults
from txport.system.files import sha256
from txport.targets import FOREIGN, ports
from txport.targets.ports import Graph
from txport.text.convert import added_tokens, companions_of

FOUR_BITS = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
EIGHT_BITS = frozenset({
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul",
    "MatMulInteger", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
})  # fmt: skip
HALF = ("fp16", "f16")  # suffixes of variants
# They take the length of each row, and read that many places from the row's beginning, whichever the mask names.
BY_LENGTH = frozenset({"GroupQueryAttention", "PagedAttention", "SparseAttention"})


def read_foreign(path: Path, variant: str | None = None) -> Bundle:
    """Return the graphs of a folder, or of one variant, as a bundle that has no `txport.json`.

    Raises `BundleError`, which lists every port that differs, for a folder that follows no known contract, and
    `UnsupportedError` for a missing variant and for unsupported models.
    """
    found = files.find(path, variant)
    outlines = {name: files.require_sound(path, name) for name in found.files.values()}
    try:
        texts = companions_of(path)
        values = Values(path, added_tokens(texts))
        graphs = _graphs(values, found.files)
        model = facts_of(values, graphs)
        graphs = _checked(values, graphs, model)
        defaults = _defaults(path, values, model)
    except (CheckpointError, ConfigError) as error:
        raise BundleError(str(error)) from error
    manifest = ForeignManifest(
        target=FOREIGN.name,
        precision=_precision(found.variant, outlines, graphs),
        opset=max((version for each in outlines.values() for name, version in each.opsets if not name), default=0),
        architecture=values.type,
        config=values.config,
        facts=model,
        checkpoint={"name": path.resolve().name, "sha256": ""},
        tools={},
        generation=dict(defaults.options),
        not_followed=dict(defaults.not_followed),
        layout=found.layout,
        variant=found.variant,
        read=graphs,
        texts=texts,
        files={
            name: {"sha256": sha256(path / name), "bytes": (path / name).stat().st_size} for name in _files(outlines)
        },
        pads=_pads(graphs, model) and not _operators(outlines) & BY_LENGTH,
        has_integers=bool(_operators(outlines) & {*EIGHT_BITS - {"DequantizeLinear"}, "QuantizeLinear"}),
    )
    return Bundle(path, manifest)


def _files(outlines: Mapping[str, Outline]) -> list[str]:
    """Return the paths in the folder of the graphs and of the files with their weights, sorted."""
    found = set(outlines)
    for name, outline in outlines.items():
        found.update((PurePosixPath(name).parent / each).as_posix() for each in outline.files)
    return sorted(found)


def _graphs(values: Values, names: Mapping[str, str]) -> dict[str, Graph]:
    """Return the graphs by role, as their files declare them; a causal model in one file is a decoder."""
    found = {role: Graph(role, name, *read_signature(values.folder / name)) for role, name in names.items()}
    alone = found.get(ports.MODEL)
    if alone is not None and (cache_dims(alone) or is_of(values, CAUSAL)):
        return {ports.DECODER: replace(alone, role=ports.DECODER)}
    return found


def _checked(values: Values, graphs: Mapping[str, Graph], model: Facts) -> dict[str, Graph]:
    """Return the graphs with the ports of their contracts; raise `BundleError`, which lists the ports that differ."""
    expected = {role: contract(model, graphs, role) for role in graphs}
    if problems := [each for role, graph in graphs.items() for each in differences(graph, expected[role], model)]:
        raise BundleError(f"{values.folder} does not follow a known contract: {'; '.join(problems)}")
    return {role: held(graph, expected[role]) for role, graph in graphs.items()}


def _pads(graphs: Mapping[str, Graph], model: Facts) -> bool:
    """Whether a batch can have rows of different lengths: the graphs must have masks, causal ones also positions."""
    masks = {ports.ENCODER: {ports.ATTENTION_MASK}, ports.MODEL: {ports.ATTENTION_MASK}}
    needed = {ports.ATTENTION_MASK, ports.POSITION_IDS} if model.is_causal else {ports.ENCODER_ATTENTION_MASK}
    has_masks = all(masks.get(role, needed) <= {port.name for port in graph.inputs} for role, graph in graphs.items())
    return has_masks or (model.is_encoder_decoder and not model.masks_source)


def _operators(outlines: Mapping[str, Outline]) -> frozenset[str]:
    """Return the types of all nodes."""
    return frozenset[str]().union(*(each.names for each in outlines.values()))


def _precision(variant: str, outlines: Mapping[str, Outline], graphs: Mapping[str, Graph]) -> str:
    """Return the precision, from the operators and the types in the files."""
    operators = _operators(outlines)
    if operators & FOUR_BITS:
        return "int4"
    if operators & EIGHT_BITS:
        return "int8"
    types = {port.dtype for graph in graphs.values() for port in (*graph.inputs, *graph.outputs)}
    return "fp16" if "float16" in types or variant.endswith(HALF) else "fp32"


def _defaults(path: Path, values: Values, model: Facts) -> Defaults:
    """Return the default options of search, or of pooling for encoder-only models."""
    if not model.generates:
        return Defaults(pooling_defaults(path, model), {})
    return search_defaults(values.generation or values.config, model)
