"""The tables of a bundle's ports, for its README and for the page of `inspect`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from txport.bundles.manifest import Manifest
from txport.models.facts import Facts
from txport.system.markdown import code
from txport.targets import ports as names
from txport.targets.ports import Graph, Port

BAR = re.compile(r"(?<!\\)\|")
ESCAPED = r"\\|"
LAYER = re.compile(r"\.\d+(?=\.|$)")
DIMS = {
    names.BATCH: "rows that are run at once",
    names.SOURCE: "places of the source",
    names.TARGET: "new tokens of the target: all of its beginning in the first step, then 1",
    names.PAST_TARGET: "tokens that the decoder has seen: 0 in the first step",
    names.PAST_SOURCE: "0 in the first step, then `encoder_sequence_length`",
    names.TOKENS: "tokens of this run",
    names.PAST: "tokens of all runs before: 0 in the first",
    names.BEAMS: "rows of each source",
    names.ALL_ROWS: "`batch_size` x `beams`",
    names.ROOM: "places of a cache",
    names.COUNT: "how many of the best tokens are asked for",
    names.ASKED: "tokens whose logits are wanted",
}
PORTS = {
    names.INPUT_IDS: "ids of tokens",
    names.INPUT_FEATURES: "log-mel features",
    names.ATTENTION_MASK: "1 for a token, 0 for padding",
    names.TOKEN_TYPE_IDS: "1 for a token of the second of two texts, else 0",
    names.POSITION_IDS: "the place of each token in its row",
    names.LAST_HIDDEN_STATE: "a vector for each place",
    names.ENCODER_HIDDEN_STATES: "what the encoder gives as `last_hidden_state`",
    names.ENCODER_ATTENTION_MASK: "the source's mask",
    names.SOURCE_LENGTHS: "how many places of each source are real",
    names.PAST_LENGTHS: "how many tokens the caches of each row hold already",
    names.LAST_PLACES: "the place of the last column of `input_ids` in each row",
    names.TOTAL: "tokens in the caches after the run; for one token of each row, any number above `last_places`",
    names.LOGITS_AT: "places in flattened `input_ids` of the tokens whose logits are wanted",
    names.CAPACITY: "the places that caches have",
    names.LOGITS: "scores",
    names.COUNT: "how many of the best tokens are wanted; 0 for none",
    names.LOG_PROBS: "log-probabilities of the best tokens",
    names.IDS: "the best tokens, the likeliest first",
    names.ALIGN: "whether the attention over the source is wanted",
    names.CROSS_ATTENTION: "attention over the source, the mean of all heads",
    names.NEXT_IDS: "the best token of each row; may be bound to `input_ids`",
    names.PRESENT_LENGTHS: "`past_lengths` + 1; may be bound to it",
}
KINDS = {
    "encoder": "the source, once",
    "decoder": "the first step and all later ones",
    "select": "picks rows of the state, for beam search",
    "step": "one token of every row",
    "prefill": "prompts into the caches",
    "model": "the whole model",
    "generate": "the whole of a search in one run; docs/single-graph.md of txport describes it",
    "select_rows": "picks rows of the caches, for beam search",
    "select_sources": "picks sources",
    "grow_rows": "gives the caches more places",
    "grow_sources": "gives the keys and values of sources more places",
    "admit_rows": "puts rows of other caches in the place of some",
    "admit_sources": "puts other sources in the place of some",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already; bars in code are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(BAR.sub(ESCAPED, cell) for cell in cells)} |" for cells in lines)


def graphs(manifest: Manifest) -> str:
    """Return a section for each graph, with the ports of those that compute, and the meaning of names in them."""
    parts: list[str] = []
    for role, graph in manifest.graphs.items():
        parts.append(f"### {graph.file}: {KINDS[role]}")
        if graph.has_weights:
            rows = port_rows(graph, manifest.facts)
            cells = [(side, code(name), dtype, code(dims), what) for side, name, dtype, dims, what in rows]
            parts.append(table(["", "port", "type", "dims", "what"], cells))
    dims = [(code(name), what) for name, what in dim_rows(manifest)]
    return "\n\n".join([*parts, "Names in these tables:", table(["name", "what"], dims)])


def port_rows(graph: Graph, facts: Facts) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield "in" or "out", name, type, dims, and description as Markdown; the ports of all layers share a row."""
    for side, ports in (("in", graph.inputs), ("out", graph.outputs)):
        shown = {(_name(port), port.dims): port for port in ports}
        for (name, dims), port in shown.items():
            yield side, name, port.dtype, f"[{', '.join(map(str, dims))}]", _described(port, graph, facts)


def _name(port: Port) -> str:
    """Return the name of a port, with the letter L for the layer of the state that it holds or moves."""
    is_moved = port.name.startswith(("selected.", "grown.", "others.", "admitted."))
    return LAYER.sub(".L", port.name, count=1) if port.state is not None or is_moved else port.name


def _described(port: Port, graph: Graph, facts: Facts) -> str:
    if port.is_attention:
        return "attention over the source"
    if port.name == names.LOGITS and facts.labels:
        return "scores of the labels"
    if port.state is None:
        return PORTS.get(port.name, "")
    of = "the source" if port.state.owner == "source" else "the tokens so far"
    into = graph.becomes.get(port.name)
    return f"{port.state.role}s of {of}" + (f"; becomes {code(LAYER.sub('.L', into, count=1))}" if into else "")


def dim_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return each name of a dynamic dim, and L if ports exist per layer, with its meaning as Markdown."""
    ports = [port for graph in manifest.graphs.values() for port in (*graph.inputs, *graph.outputs)]
    used = {word for port in ports for dim in port.dims if isinstance(dim, str) for word in dim.split(" + ")}
    meanings = DIMS | ({names.BATCH: "sources that are run at once"} if names.BEAMS in used else {})
    layers = [port.state.layer for port in ports if port.state is not None]
    layer = [("L", f"layers of the decoder, 0 to {max(layers)}")] if layers else []
    return layer + [(name, text) for name, text in meanings.items() if name in used]
