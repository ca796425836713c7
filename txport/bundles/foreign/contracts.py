"""The ports of graphs exported by other tools: those of our portable graphs, and inputs that other exporters add.

https://huggingface.co/docs/optimum-onnx and https://huggingface.co/docs/transformers.js find ports by name only.
Therefore ports can have any order, and outputs that are not used here are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from txport.bundles.foreign.files import LATER
from txport.models.audio import Features
from txport.models.config import MOST_LAYERS
from txport.models.facts import LENGTH, Facts, Owner, Role, StateTensor
from txport.targets.portable import PORTABLE
from txport.targets.ports import (
    ATTENTION_MASK,
    BATCH,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    LAST_HIDDEN_STATE,
    MODEL,
    PAST_SOURCE,
    POSITION_IDS,
    SOURCE,
    TOKEN_TYPE_IDS,
    TOKENS,
    Dim,
    Graph,
    Port,
)

USE_CACHE_BRANCH = "use_cache_branch"  # whether a merged decoder continues from caches, (1,)
CACHE_POSITION = "cache_position"  # the positions of the tokens of a step, (T,)
LOGITS_TO_KEEP = "num_logits_to_keep"  # the number of last tokens to compute logits for, ()
EMBEDDINGS = "token_embeddings"
ALIASES = {LAST_HIDDEN_STATE: EMBEDDINGS}  # our name of an output -> that of exports of sentence encoders
FLOATS = ("float32", "float16")
LAYER = re.compile(r"(?:past_key_values|present)\.(\d{1,4})\..+")
OF_ROWS = (BATCH, TOKENS)
STEP = (  # inputs that a decoder may have
    Port(ATTENTION_MASK, "int64", OF_ROWS),
    Port(POSITION_IDS, "int64", OF_ROWS),
    Port(CACHE_POSITION, "int64", (TOKENS,)),
    Port(LOGITS_TO_KEEP, "int64", ()),
    Port(USE_CACHE_BRANCH, "bool", (1,)),
)
TEXT = (Port(TOKEN_TYPE_IDS, "int64", OF_ROWS), Port(POSITION_IDS, "int64", OF_ROWS))  # and an encoder alone
FURTHER = {ENCODER: (), MODEL: TEXT}
SPARE = {ENCODER_ATTENTION_MASK, *(port.name for port in (*STEP, *TEXT))}  # inputs that a graph can omit


def state_of(owners: Collection[Owner], files: Sequence[Graph], heads: int, head: int) -> tuple[StateTensor, ...]:
    """Return the state tensors of decoders with these caches, in the order of `Facts.state`."""
    ports = (port for file in files for port in file.inputs)
    numbers = [int(found[1]) for port in ports if (found := LAYER.fullmatch(port.name))]
    layers = range(min(max(numbers, default=-1) + 1, MOST_LAYERS))
    roles: tuple[Role, ...] = ("key", "value")
    dims = (heads, LENGTH, head)
    return tuple(StateTensor(at, role, owner, dims) for owner in sorted(owners) for at in layers for role in roles)


def cache_dims(file: Graph) -> tuple[Dim, Dim] | None:
    """Return the number of heads and the head size of the first cache that a graph reads; None without caches."""
    dims = (port.dims for port in file.inputs if LAYER.fullmatch(port.name) and len(port.dims) == 4)
    return next(((each[1], each[3]) for each in dims), None)


def contract(facts: Facts, files: Mapping[str, Graph], role: str) -> Graph:
    """Return the graph of a role as its file must have it, for a model of these facts."""
    portable = {graph.role: graph for graph in PORTABLE.contracts[facts.task](facts, FLOATS[0])}
    graph = portable[DECODER if role == LATER else role]
    inputs, outputs = graph.inputs, graph.outputs
    if role == DECODER and LATER in files:  # the first step reads no caches
        inputs = tuple(port for port in inputs if port.state is None)
    if role == LATER:  # later steps do not give those of the source again
        outputs = tuple(port for port in outputs if port.state is None or port.state.owner == "row")
    if EMBEDDINGS in _named(files[role].outputs):
        outputs = tuple(replace(port, name=ALIASES.get(port.name, port.name)) for port in outputs)
    further = (port for port in FURTHER.get(role, STEP) if port.name not in _named(inputs))
    return Graph(role, files[role].file, (*inputs, *further), outputs)


def differences(file: Graph, expected: Graph, facts: Facts) -> Iterator[str]:
    """Yield one sentence per port of a file that differs from its contract."""
    may_omit = SPARE | ({ENCODER_HIDDEN_STATES} if file.role == LATER else set())
    for side in ("input", "output"):
        found, wanted = (_named(getattr(graph, f"{side}s")) for graph in (file, expected))
        for name, port in wanted.items():
            if name in found and not _fits(found[name], port, facts, side):
                yield f"{file.file}: {side} {name} is {_described(found[name])}, expected {_described(port, *FLOATS)}"
            elif name not in found and not (side == "input" and name in may_omit):
                yield f"{file.file}: {side} {name} is missing, expected {_described(port, *FLOATS)}"
        if side == "input":
            strange = (port for name, port in found.items() if name not in wanted)
            yield from (f"{file.file}: input {port.name}, {_described(port)}, was not expected" for port in strange)


def held(file: Graph, expected: Graph) -> Graph:
    """Return the graph with those of its ports that the contract names; cache ports get their state tensor."""
    wanted = _named((*expected.inputs, *expected.outputs))
    sides = ((replace(port, state=wanted[port.name].state) for port in side if port.name in wanted)
             for side in (file.inputs, file.outputs))  # fmt: skip
    return Graph(file.role, file.file, *map(tuple, sides))


def _named(ports: Sequence[Port]) -> dict[str, Port]:
    return {port.name: port for port in ports}


def _fits(port: Port, expected: Port, facts: Facts, side: str) -> bool:
    """Whether a port has the type and the dims; a file may leave dims open, and fix those of outputs and of audio."""
    dtypes = FLOATS if expected.dtype in FLOATS else (expected.dtype,)
    if port.dtype not in dtypes or len(port.dims) != len(expected.dims):
        return False
    fixed = {SOURCE, PAST_SOURCE} if isinstance(facts.source, Features) else set()
    return all(
        isinstance(dim, str) or dim == wanted or (isinstance(wanted, str) and (side == "output" or wanted in fixed))
        for dim, wanted in zip(port.dims, expected.dims, strict=True)
    )


def _described(port: Port, *floats: str) -> str:
    dtype = " or ".join(floats) if port.dtype in floats else port.dtype
    return f"{dtype} [{', '.join(map(str, port.dims))}]"
