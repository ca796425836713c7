"""Reading a folder exported by other tools; the ports of its graphs must agree with its config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from txport.bundles.bundle import Bundle
from txport.bundles.declared import Ports, read_signature
from txport.bundles.foreign import contracts, facts, files
from txport.bundles.foreign.contracts import HEAD, HEADS, HIDDEN, LABELS, VOCABULARY, Contract, Sizes
from txport.bundles.foreign.files import LATER, Found
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.foreign.values import Values
from txport.bundles.graphs import Outline
from txport.checkpoints.pooling import pooling_defaults
from txport.errors import BundleError, CheckpointError, ConfigError, UnsupportedError
from txport.models.audio import Features
from txport.models.facts import MOST_NUMBERS, Facts, StateTensor, numbers_of
from txport.models.generation import Defaults, search_defaults
from txport.models.names import TOKENIZER
from txport.system.documents import DocumentError, read_json
from txport.system.files import sha256
from txport.targets import FOREIGN
from txport.targets.ports import (
    ATTENTION_MASK,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    INPUT_FEATURES,
    LAST_HIDDEN_STATE,
    LOGITS,
    MODEL,
    POSITION_IDS,
    Graph,
)
from txport.text.convert import companions_of

FOUR_BITS = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
EIGHT_BITS = frozenset({
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul",
    "MatMulInteger", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
})  # fmt: skip
HALF = ("fp16", "f16")  # suffixes of variants


class File(NamedTuple):
    """A graph as its file declares it."""

    name: str
    inputs: Ports
    outputs: Ports

    @property
    def has_past(self) -> bool:
        """Whether the graph has caches as inputs."""
        return contracts.layers_of(self.inputs) > 0


def read_foreign(path: Path, variant: str | None = None) -> Bundle:
    """Return the graphs of a folder, or of one variant, as a bundle that has no `txport.json`.

    Raises `BundleError`, which lists every port that differs, for a folder that follows no known contract, and
    `UnsupportedError` for a missing variant and for unsupported models.
    """
    found = files.find(path, variant)
    outlines = {name: files.require_sound(path, name) for name in found.files.values()}
    operators = frozenset[str]().union(*(each.names for each in outlines.values()))
    graphs = {role: File(name, *read_signature(path / name)) for role, name in found.files.items()}
    try:
        texts = companions_of(path)
        values = Values(path, _special(texts))
        model, read = _described(values, graphs)
        defaults = _defaults(path, values, model)
    except (CheckpointError, ConfigError) as error:
        raise BundleError(str(error)) from error
    manifest = ForeignManifest(
        target=FOREIGN.name,
        precision=_precision(found, operators, read),
        opset=max((version for each in outlines.values() for name, version in each.opsets if not name), default=0),
        architecture=values.type,
        config=values.config,
        facts=model,
        checkpoint={"name": path.resolve().name, "sha256": ""},
        tools={},
        generation=dict(defaults.options),
        not_followed=dict(defaults.not_followed),
        layout=found.layout.name,
        variant=found.variant,
        read=read,
        texts=texts,
        files={name: _hashed(path / name) for name in _files(outlines)},
        pads=_pads(read, model),
    )
    return Bundle(path, manifest)


def _files(outlines: Mapping[str, Outline]) -> list[str]:
    """Return the paths in the folder of the graphs and of the files with their weights, sorted."""
    found = set(outlines)
    for name, outline in outlines.items():
        found.update((PurePosixPath(name).parent / each).as_posix() for each in outline.files)
    return sorted(found)


def _hashed(file: Path) -> dict[str, Any]:
    return {"sha256": sha256(file), "bytes": file.stat().st_size}


def _described(values: Values, graphs: Mapping[str, File]) -> tuple[Facts, dict[str, Graph]]:
    """Return the facts of a model and its graphs by role; compare each graph with its contract."""
    if ENCODER in graphs:
        return _seq2seq(values, graphs)
    alone = graphs.get(MODEL)
    if alone is None or alone.has_past or facts.is_of(values.classes, facts.CAUSAL):
        decoder = {DECODER: alone} if alone is not None else dict(graphs)
        return _causal(values, decoder)
    return _encoder(values, alone)


def _seq2seq(values: Values, graphs: Mapping[str, File]) -> tuple[Facts, dict[str, Graph]]:
    encoder = graphs[ENCODER]
    decoder = graphs[DECODER]
    is_heard = INPUT_FEATURES in {port.name for port in encoder.inputs}
    if is_heard != (values.type == "whisper"):
        reads = "features" if is_heard else "tokens"
        raise UnsupportedError(f"{values.folder} is a {values.type} that reads {reads}, which is not supported")
    sizes = _sizes(values, graphs)
    kinds = {ENCODER: contracts.HEARING if is_heard else contracts.ENCODING}
    if LATER in graphs:
        kinds |= {DECODER: contracts.FIRST, LATER: contracts.LATER}
    else:
        kinds[DECODER] = contracts.MERGED if decoder.has_past else contracts.WHOLE
    read = _held(values, graphs, kinds, sizes)
    return facts.seq2seq_facts(values, sizes[HIDDEN], sizes[VOCABULARY], _state(read)), read


def _causal(values: Values, graphs: Mapping[str, File]) -> tuple[Facts, dict[str, Graph]]:
    sizes = _sizes(values, graphs)
    kinds = {DECODER: contracts.CAUSAL if graphs[DECODER].has_past else contracts.CAUSAL_WHOLE}
    if LATER in graphs:
        kinds = {DECODER: contracts.CAUSAL_FIRST, LATER: contracts.CAUSAL}
    read = _held(values, graphs, kinds, sizes)
    return facts.causal_facts(values, sizes[HIDDEN], sizes[VOCABULARY], _state(read)), read


def _encoder(values: Values, file: File) -> tuple[Facts, dict[str, Graph]]:
    sizes = _sizes(values, {MODEL: file})
    model = facts.encoder_facts(values, file.inputs, file.outputs, sizes[HIDDEN], sizes[VOCABULARY])
    sizes[LABELS] = facts.labels_size(values, sizes[VOCABULARY])
    names = {port.name for port in file.outputs}
    if LOGITS in names:
        contract = contracts.OF_TOKENS if model.outputs[0].is_of_tokens else contracts.OF_TEXTS
    else:
        contract = contracts.SENTENCES if contracts.TOKEN_EMBEDDINGS in names else contracts.VECTORS
    return model, _held(values, {MODEL: file}, {MODEL: contract}, sizes)


def _sizes(values: Values, graphs: Mapping[str, File]) -> dict[str, int]:
    """Return the dims from the files and the config; raise `BundleError` if neither states one that is needed."""
    found = facts.known_sizes(values)
    says = {LAST_HIDDEN_STATE: HIDDEN, contracts.TOKEN_EMBEDDINGS: HIDDEN}
    if MODEL not in graphs or facts.is_of(values.classes, facts.MASKED):
        says[LOGITS] = VOCABULARY
    for port in (port for file in graphs.values() for port in file.outputs if port.name in says and port.dims):
        name = says[port.name]
        fixed = port.dims[-1]
        if isinstance(fixed, int) and (name == HIDDEN or name not in found):  # some configs have another width
            found[name] = fixed
    needed = [HIDDEN, VOCABULARY]
    if decoder := next((file for file in graphs.values() if file.has_past), None):
        told = zip((HEADS, HEAD), facts.cache_sizes(values), strict=True)
        found |= {**{name: size for name, size in told if size is not None}, **contracts.heads_of(decoder.inputs)}
        needed += [HEADS, HEAD]
    if missing := [name for name in needed if name not in found]:
        raise BundleError(f"{values.folder}: neither its config nor its graphs define the {', '.join(missing)}")
    return found


def _held(values: Values, graphs: Mapping[str, File], kinds: Mapping[str, Contract], sizes: Sizes) -> dict[str, Graph]:
    """Return the graphs with the ports of their contracts; raise `BundleError`, which lists the ports that differ."""
    layers = max(contracts.layers_of(file.inputs) for file in graphs.values())
    problems = [
        problem
        for role, file in graphs.items()
        for problem in contracts.differences(file.name, kinds[role], file.inputs, file.outputs, layers, sizes)
    ]
    if problems:
        raise BundleError(f"{values.folder} does not follow a known contract: {'; '.join(problems)}")
    return {
        role: Graph(role, file.name, *(contracts.held(kinds[role], side, layers, sizes) for side in file[1:]))
        for role, file in graphs.items()
    }


def _state(read: Mapping[str, Graph]) -> tuple[StateTensor, ...]:
    """Return the state tensors of the decoders in the order of `Facts.state`: of the rows, then of the sources."""
    found = {each for graph in read.values() for each in graph.past()}
    if sum(numbers_of(each, 1) for each in found) > MOST_NUMBERS:
        raise BundleError(f"the caches have too many values per token; the maximum is {MOST_NUMBERS}")
    return tuple(sorted(found, key=lambda each: (each.owner, each.layer, each.role)))


def _pads(read: Mapping[str, Graph], model: Facts) -> bool:
    """Whether a batch can have rows of different lengths: the graphs must have masks, causal ones also positions."""
    if model.is_causal:
        return all({ATTENTION_MASK, POSITION_IDS} <= _names(graph) for graph in read.values())
    masks = {ENCODER: ATTENTION_MASK, MODEL: ATTENTION_MASK}
    every = all(masks.get(role, ENCODER_ATTENTION_MASK) in _names(graph) for role, graph in read.items())
    return every or isinstance(model.source, Features)


def _names(graph: Graph) -> set[str]:
    return {port.name for port in graph.inputs}


def _precision(found: Found, operators: frozenset[str], read: Mapping[str, Graph]) -> str:
    """Return the precision, from the operators and the types in the files."""
    if operators & FOUR_BITS:
        return "int4"
    if operators & EIGHT_BITS:
        return "int8"
    types = {port.dtype for graph in read.values() for port in (*graph.inputs, *graph.outputs)}
    return "fp16" if "float16" in types or found.variant.endswith(HALF) else "fp32"


def _defaults(path: Path, values: Values, model: Facts) -> Defaults:
    """Return the default options of search, or of pooling for encoder-only models."""
    if not model.generates:
        return Defaults(pooling_defaults(path, model), {})
    return search_defaults(values.generation or values.config, model)


def _special(texts: Mapping[str, Path | str]) -> dict[str, int] | None:
    """Return the special tokens of a tokenizer as text -> id; None without a tokenizer, {} for an invalid one."""
    found = texts.get(TOKENIZER)
    try:
        if found is None:
            return None
        tokens = (read_json(found) if isinstance(found, Path) else json.loads(found))["added_tokens"]
        return {each["content"]: each["id"] for each in tokens if type(each["id"]) is int}
    except (DocumentError, LookupError, TypeError):  # loading the tokenizer reports the error
        return {}
