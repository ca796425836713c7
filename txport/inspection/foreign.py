"""Texts of the page for a folder exported by other tools: how to run its graphs, and facts about it."""

from __future__ import annotations

from collections.abc import Iterator

from txport.bundles.foreign.contracts import USE_CACHE_BRANCH
from txport.bundles.foreign.files import LATER
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.ports import DECODER, ENCODER, MODEL, Graph
from txport.bundles.readme.settings import ability_of, reads_features, start
from txport.bundles.readme.steps import SCORES, around, ending, meaning_of_outputs, numbers
from txport.bundles.readme.tables import KINDS
from txport.system.markdown import code

LAYOUTS = {
    "merged": "one decoder for all steps",
    "apart": "a decoder for the first step, one for the others",
    "one": "",
}


def about(manifest: ForeignManifest) -> list[str]:
    """Return short descriptions of a folder, in addition to its task and its precision."""
    layout = LAYOUTS.get(manifest.layout) or f"{len(manifest.read)} graph{'s' if len(manifest.read) > 1 else ''}"
    variant = [f"variant {manifest.variant}"] if manifest.variant else []
    return ["exported by others", f"model_type {manifest.architecture}", f"layout: {layout}", *variant]


def kind(manifest: ForeignManifest, role: str) -> str:
    """Return the purpose of the graph of a role."""
    if role == LATER or (role == DECODER and LATER in manifest.read):
        return "all steps but the first" if role == LATER else "the first step"
    return KINDS[role]


def steps(manifest: ForeignManifest) -> list[str]:
    """Return the steps of a program that runs the graphs, as Markdown."""
    graphs = manifest.read
    facts = manifest.facts
    if facts.task == "encode":
        vocabulary = facts.vocabulary
        ids = f"Make the ids of the text: {around(vocabulary.before, vocabulary.after)}; at most {vocabulary.longest}."
        return [ids, f"{_run(graphs[MODEL])}.", meaning_of_outputs(manifest, ability_of(manifest))]
    return [*_begin(manifest), *_decode(manifest), SCORES, *_caches(manifest), ending(manifest)]


def notes(manifest: ForeignManifest) -> list[str]:
    """Return notes on batches, on running the folder and on comparing it with PyTorch, as Markdown."""
    apart = "run apart, for its graphs take no padding"
    rows = "may stand in one batch, padded" if manifest.pads else apart
    return [
        f"**Batches**: rows of unequal lengths {rows}.",
        _running(manifest),
        "**Parity**: nothing says what the folder was exported from; `txport parity FOLDER --checkpoint CHECKPOINT` "
        "compares it with PyTorch.",
    ]


def _running(manifest: ForeignManifest) -> str:
    if manifest.facts.task == "encode":
        return "**Running**: `txport run FOLDER TEXT` does all of this."
    given = "AUDIO" if reads_features(manifest) else "TEXT"
    return f"**Search**: `txport run FOLDER {given}` does all of this, with beams, samples and streams."


def _begin(manifest: ForeignManifest) -> Iterator[str]:
    if ENCODER in manifest.read:
        kind = "features of the audio" if reads_features(manifest) else "ids of the source, with its special tokens"
        yield f"Make the {kind}."
        yield f"{_run(manifest.read[ENCODER])}, once a source, which decoders read as `encoder_hidden_states`."
        yield f"A target begins with {numbers(start(manifest))}."
    else:
        yield f"Make the ids of the prompt, with its special tokens; at most {manifest.facts.writes.longest} in all."


def _decode(manifest: ForeignManifest) -> Iterator[str]:
    decoder = manifest.read[DECODER]
    later = manifest.read.get(LATER)
    first = "the first token" if ENCODER in manifest.read else "the whole prompt"
    if later is not None:
        yield f"{_run(decoder)}, for {first}."
        yield f"{_run(later)}, for each token after it, with the caches."
    elif not manifest.has_past:
        yield f"{_run(decoder)}, for each token, over all tokens so far: there are no caches."
    elif USE_CACHE_BRANCH in {port.name for port in decoder.inputs}:
        yield f"{_run(decoder)}: `use_cache_branch` is false for {first}, with empty caches, and true after it."
    else:
        yield f"{_run(decoder)}, for {first} with empty caches, and then for each token with those that it gave."


def _run(graph: Graph) -> str:
    """Return a sentence with the inputs and outputs of a graph, without caches."""
    reads = ", ".join(code(port.name) for port in graph.inputs if port.state is None)
    gives = ", ".join(code(port.name) for port in graph.outputs if port.state is None)
    return f"Run {code(graph.file)} on {reads} -> {gives}"


def _caches(manifest: ForeignManifest) -> Iterator[str]:
    if not manifest.has_past:
        return
    description = "Each `present.*` becomes the `past_key_values.*` of the same name"
    if ENCODER in manifest.read:
        description += "; those of the source (`...encoder...`) stay as the first step gave them"
    yield f"{description}."
