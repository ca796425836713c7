"""The tables of a README: a summary of the bundle, and the ports of its graphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from txport.bundles.manifest import STAND_IN, STOOD_IN, Manifest
from txport.models.facts import Facts
from txport.system.markdown import code, plain
from txport.targets import ports as names
from txport.targets.ports import Dim, Graph, Port

README = "README.md"
BAR = re.compile(r"(?<!\\)\|")
ESCAPED = r"\\|"
LAYER = re.compile(r"\.(\d+)(?=\.|$)")
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
    "selected_rows": "rows to keep",
    "admitted_rows": "rows that others take",
    names.MORE: "places that each gets more",
    names.PREFIX: "tokens that all targets begin with",
    names.HYPOTHESES: "`num_beams`",
    names.NEW_TOKENS: "tokens of the longest hypothesis",
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
    names.LAST_PLACES: "the place of the last token of each prompt",
    names.PROMPT_SIZE: "the length of the longest prompt",
    names.CAPACITY: "the places that caches have",
    names.LOGITS: "scores",
    names.COUNT: "how many of the best tokens are wanted; 0 for none",
    names.LOG_PROBS: "log-probabilities of the best tokens",
    names.IDS: "the best tokens, the likeliest first",
    names.ALIGN: "whether the attention over the source is wanted",
    names.CROSS_ATTENTION: "attention over the source, the mean of all heads",
    names.ROWS: "numbers of rows",
    names.MORE: "how many places each gets more",
    names.NEXT_IDS: "the best token of each row; may be bound to `input_ids`",
    names.PRESENT_LENGTHS: "`past_lengths` + 1; may be bound to it",
    names.PREFIX_IDS: "what targets begin with, after the start token; (batch_size, 0) for nothing",
    names.MAX_NEW_TOKENS: "how many tokens a target may have, the end token counted, the prefix not",
    names.NUM_BEAMS: "how many beams; 1 is greedy search",
    names.LENGTH_PENALTY: "a score is the sum of log-probabilities over the length to this power",
    names.SEQUENCES: "the hypotheses, the best first, padded",
    names.SEQUENCES_SCORES: "their scores; -inf where there is no further hypothesis",
    names.SEQUENCES_LENGTHS: "how many tokens of each are no padding",
}
MOVED_TO = {
    "selected": "the rows that were kept",
    "grown": "the same with zeros behind",
    "others": "rows of others, as long",
    "admitted": "the same with others in some rows; may be bound to the input",
}
MOVED = tuple(f"{each}." for each in MOVED_TO)
MORE = "docs/embedding.md of txport says how batches, beams, the best tokens and alignment are computed."
TASKS = {"seq2seq": "sequence to sequence", "causal": "causal language model", "encode": "encoder"}
KINDS = {
    "encoder": "the source, once",
    "decoder": "the first step and all later ones",
    "select": "picks rows of the state, for beam search",
    "step": "one token of every row",
    "prefill": "prompts into the caches",
    "model": "the whole model",
    "generate": "the whole of a search in one run",
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


def ports(graph: Graph, facts: Facts) -> str:
    """Return a table of the inputs and outputs of a graph; ports that exist per layer share one row."""
    rows = [
        (side, code(name), dtype, code(dims), description)
        for side, name, dtype, dims, description in port_rows(graph, facts)
    ]
    return table(["", "port", "type", "dims", "what"], rows)


def port_rows(graph: Graph, facts: Facts) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row per port, or per kind of port: "in" or "out", name, type, dims, and description as Markdown."""
    for side, every in (("in", graph.inputs), ("out", graph.outputs)):
        for port, layers in _grouped(every):
            name = LAYER.sub(".L", port.name, count=1) if layers else port.name
            dims = "[" + ", ".join(map(str, port.dims)) + "]"
            yield side, name, port.dtype, dims, _described(port, graph, facts, layers)


def _grouped(every: Sequence[Port]) -> Iterator[tuple[Port, int]]:
    """Yield one port for those that differ only in the layer, and their number; 0 for a port without a layer."""
    groups: dict[tuple[str, tuple[Dim, ...]], list[Port]] = {}
    for port in every:
        of_layer = port.state is not None or port.name.startswith(MOVED)
        key = LAYER.sub(".L", port.name, count=1) if of_layer else port.name
        groups.setdefault((key, port.dims), []).append(port)
    for (key, _), found in groups.items():
        yield found[0], len(found) if key != found[0].name else 0


def _described(port: Port, graph: Graph, facts: Facts, layers: int) -> str:
    if port.is_attention:
        return "attention over the source"
    if port.name.startswith(MOVED):
        return MOVED_TO[port.name.partition(".")[0]]
    if port.state is None:
        if port.name == names.LOGITS and facts.labels:
            return "scores of the labels"
        return PORTS.get(port.name, "")
    of = "the source" if port.state.owner == "source" else "the tokens so far"
    what = f"{port.state.role}s of {of}" + (f"; L = 0 to {layers - 1}" if layers > 1 else "; L = 0" if layers else "")
    into = graph.becomes.get(port.name)
    return what + (f"; becomes {code(LAYER.sub('.L', into, count=1))}" if into else "")


def dims(manifest: Manifest) -> str:
    """Return a table of the dynamic dims and their meanings."""
    return table(["dim", "what"], [(code(name), text) for name, text in dim_rows(manifest)])


def dim_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the name of each dynamic dim, and its meaning as Markdown."""
    found = {str(dim) for graph in manifest.graphs.values() for port in (*graph.inputs, *graph.outputs)
             for dim in port.dims if isinstance(dim, str)}  # fmt: skip
    used = {word for dim in found for word in dim.split(" + ")}
    description = DIMS | ({names.BATCH: "sources that are run at once"} if names.BEAMS in used else {})
    return [(name, text) for name, text in description.items() if name in used]


def about(manifest: Manifest) -> str:
    """Return a table that summarises the bundle."""
    checkpoint = manifest.checkpoint
    tools = manifest.tools
    rows = [
        ("task", TASKS[manifest.facts.task]),
        ("architecture", f"{plain(manifest.architecture)}{_sizes(manifest.facts)}"),
        ("target", manifest.made_for.summary),
        ("precision", plain(manifest.described_precision)),
        ("opset", str(manifest.opset)),
        ("checkpoint", f"{code(checkpoint['name'])}, SHA-256 {code(checkpoint['sha256'])}"),
        *([("quantised before", plain(checkpoint["quantised"]))] if "quantised" in checkpoint else []),
        ("parity with PyTorch", parity(manifest)),
        ("made with", plain(", ".join(f"{name} {version}" for name, version in tools.items()))),
    ]  # fmt: skip
    return table(["", ""], rows)


def parity(manifest: Manifest) -> str:
    """Return the result of the comparison at export, without figures that depend on the machine."""
    found = manifest.parity
    if manifest.weightless:
        return "not compared: these are graphs without weights"
    if not found:
        return "not compared yet"
    cases, rows = (found.get(name) for name in ("cases", "rows_searched"))
    where = f", {STOOD_IN}" if STAND_IN in found.get("runtimes", ()) else ""
    verdict = f"{found.get('verdict')}{where}"
    return plain(f"{verdict}: {cases} cases, {rows} rows searched or encoded, seed {found.get('seed')}")


def _sizes(facts: Facts) -> str:
    layers = 1 + max((each.layer for each in facts.state), default=-1)
    found = [f"width {facts.width}"] + ([f"{layers} decoder layers"] if layers else [])
    return f" ({', '.join(found)})"
