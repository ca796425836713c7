"""The ports of graphs exported by other tools: the names, types and dims that the exporters agree on, per role.

https://huggingface.co/docs/optimum-onnx and https://huggingface.co/docs/transformers.js find ports by name only.
Therefore ports can have any order, and outputs that are not used here are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from txport.models.config import MOST_LAYERS
from txport.models.facts import LENGTH, Owner, Role, StateTensor
from txport.targets.ports import (
    ATTENTION_MASK,
    BATCH,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    INPUT_FEATURES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LOGITS,
    PAST,
    POSITION_IDS,
    SOURCE,
    TARGET,
    TOKEN_TYPE_IDS,
    TOKENS,
    Dim,
    Port,
)

USE_CACHE_BRANCH = "use_cache_branch"  # whether a merged decoder continues from caches, (1,)
CACHE_POSITION = "cache_position"  # the positions of the tokens of a step, (T,)
LOGITS_TO_KEEP = "num_logits_to_keep"  # the number of last tokens to compute logits for, ()
PAST_NAME, PRESENT_NAME = "past_key_values", "present"
TOKEN_EMBEDDINGS, POOLED, SENTENCE = "token_embeddings", "pooler_output", "sentence_embedding"

INTS = ("int64",)
FLOATS = ("float32", "float16")
BOOLS = ("bool",)
HIDDEN, HEADS, HEAD, VOCABULARY = "hidden_size", "num_heads", "head_size", "vocabulary_size"
BINS, FRAMES, LABELS = "mel_bins", "frames", "labels"
EVERY = f"{PAST} + {TOKENS}"
SIZES = frozenset({HIDDEN, HEADS, HEAD, VOCABULARY, BINS, FRAMES, LABELS, SOURCE})  # dims that a file may fix
LAYER = re.compile(rf"(?:{PAST_NAME}|{PRESENT_NAME})\.(\d{{1,4}})\..+")


@dataclass(frozen=True)
class Wanted:
    """A port of a contract, or one port per layer: its name, its allowed types, and its dims by name.

    `state` is the kind of state tensor that a port per layer holds. A graph can omit a port that is not `needed`.
    """

    name: str
    dtypes: tuple[str, ...]
    dims: tuple[str, ...]
    needed: bool = True
    state: tuple[Owner, Role] | None = None

    def of(self, layer: int) -> str:
        """Return the port's name in one layer."""
        return self.name.format(layer=layer)


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs of a graph."""

    inputs: tuple[Wanted, ...]
    outputs: tuple[Wanted, ...]


def _spare(name: str, dtypes: tuple[str, ...], *dims: str) -> Wanted:
    return Wanted(name, dtypes, dims, needed=False)


def _caches(prefix: str, side: str, owner: Owner, length: str, *, needed: bool = True) -> tuple[Wanted, ...]:
    """Return the ports of the keys and values of each layer; `side` is ".decoder", ".encoder" or ""."""
    dims = (BATCH, HEADS, length, HEAD)
    roles: tuple[Role, ...] = ("key", "value")
    return tuple(
        Wanted(f"{prefix}.{{layer}}{side}.{role}", FLOATS, dims, needed, state=(owner, role)) for role in roles
    )


IDS = Wanted(INPUT_IDS, INTS, (BATCH, TOKENS))
STEP = (
    Wanted(INPUT_IDS, INTS, (BATCH, TARGET)),
    _spare(ATTENTION_MASK, INTS, BATCH, TARGET),
    _spare(ENCODER_ATTENTION_MASK, INTS, BATCH, SOURCE),
    _spare(POSITION_IDS, INTS, BATCH, TARGET),
    _spare(CACHE_POSITION, INTS, TARGET),
    _spare(LOGITS_TO_KEEP, INTS),
    _spare(USE_CACHE_BRANCH, BOOLS, "1"),
)
MEMORY = Wanted(ENCODER_HIDDEN_STATES, FLOATS, (BATCH, SOURCE, HIDDEN))
SAID = Wanted(LOGITS, FLOATS, (BATCH, TARGET, VOCABULARY))
OWN = (_caches(PAST_NAME, ".decoder", "row", PAST), _caches(PRESENT_NAME, ".decoder", "row", EVERY))
CROSS = (_caches(PAST_NAME, ".encoder", "source", SOURCE), _caches(PRESENT_NAME, ".encoder", "source", SOURCE))
ENCODING = Contract(
    (IDS, _spare(ATTENTION_MASK, INTS, BATCH, TOKENS)), (Wanted(LAST_HIDDEN_STATE, FLOATS, (BATCH, TOKENS, HIDDEN)),)
)
HEARING = Contract(
    (Wanted(INPUT_FEATURES, FLOATS, (BATCH, BINS, FRAMES)),),
    (Wanted(LAST_HIDDEN_STATE, FLOATS, (BATCH, SOURCE, HIDDEN)),),
)
WHOLE = Contract((*STEP, MEMORY), (SAID,))
FIRST = Contract((*STEP, MEMORY), (SAID, *OWN[1], *CROSS[1]))
LATER = Contract((*STEP, _spare(MEMORY.name, MEMORY.dtypes, *MEMORY.dims), *OWN[0], *CROSS[0]), (SAID, *OWN[1]))
MERGED = Contract((*STEP, MEMORY, *OWN[0], *CROSS[0]), (SAID, *OWN[1], *CROSS[1]))
PROMPT = (
    IDS,
    _spare(ATTENTION_MASK, INTS, BATCH, EVERY),
    _spare(POSITION_IDS, INTS, BATCH, TOKENS),
    _spare(CACHE_POSITION, INTS, TOKENS),
    _spare(LOGITS_TO_KEEP, INTS),
    _spare(USE_CACHE_BRANCH, BOOLS, "1"),
)
PAST_OWN = _caches(PAST_NAME, "", "row", PAST)
PRESENT_OWN = _caches(PRESENT_NAME, "", "row", EVERY)
NEXT = Wanted(LOGITS, FLOATS, (BATCH, TOKENS, VOCABULARY))
CAUSAL_WHOLE = Contract(PROMPT, (NEXT,))
CAUSAL_FIRST = Contract(PROMPT, (NEXT, *PRESENT_OWN))
CAUSAL = Contract((*PROMPT, *PAST_OWN), (NEXT, *PRESENT_OWN))
TEXT = (
    IDS,
    _spare(ATTENTION_MASK, INTS, BATCH, TOKENS),
    _spare(TOKEN_TYPE_IDS, INTS, BATCH, TOKENS),
    _spare(POSITION_IDS, INTS, BATCH, TOKENS),
)
VECTORS = Contract(TEXT, (Wanted(LAST_HIDDEN_STATE, FLOATS, (BATCH, TOKENS, HIDDEN)),))
SENTENCES = Contract(TEXT, (Wanted(TOKEN_EMBEDDINGS, FLOATS, (BATCH, TOKENS, HIDDEN)),))
OF_TEXTS = Contract(TEXT, (Wanted(LOGITS, FLOATS, (BATCH, LABELS)),))
OF_TOKENS = Contract(TEXT, (Wanted(LOGITS, FLOATS, (BATCH, TOKENS, LABELS)),))

Ports = Sequence[Port]
Sizes = Mapping[str, int]  # known dims, by their names in contracts


def layers_of(ports: Ports) -> int:
    """Return the number of layers, from the names of the cache ports; at most `MOST_LAYERS`."""
    numbers = [int(found[1]) for port in ports if (found := LAYER.fullmatch(port.name))]
    return min(max(numbers, default=-1) + 1, MOST_LAYERS)


def heads_of(ports: Ports) -> dict[str, int]:
    """Return the number of heads and the head size of the first cache, without those that are dynamic in the file."""
    dims = next((port.dims for port in ports if LAYER.fullmatch(port.name) and len(port.dims) == 4), ())
    found = dict(zip((HEADS, HEAD), (dims[1], dims[3]), strict=True)) if dims else {}
    return {name: each for name, each in found.items() if isinstance(each, int)}


def differences(
    file: str, contract: Contract, inputs: Ports, outputs: Ports, layers: int, sizes: Sizes
) -> Iterator[str]:
    """Yield one sentence per port of a file that differs from its contract; `sizes` are the known dims."""
    for side, wanted, found in (("input", contract.inputs, inputs), ("output", contract.outputs, outputs)):
        there = {port.name: port for port in found}
        names = {name: each for each in wanted for name in _names(each, layers)}
        for name, each in names.items():
            if name in there and not _fits(each, there[name], side, sizes):
                port = there[name]
                yield f"{file}: {side} {name} is {_described(port)}, expected {_expected(each, sizes)}"
            elif name not in there and each.needed:
                yield f"{file}: {side} {name} is missing, expected {_expected(each, sizes)}"
        if side == "input":
            strange = (port for port in found if port.name not in names)
            yield from (f"{file}: input {port.name}, {_described(port)}, was not expected" for port in strange)


def held(contract: Contract, ports: Ports, layers: int, sizes: Sizes) -> tuple[Port, ...]:
    """Return those of the ports that the contract names, in the same order; cache ports get their state tensor."""
    sides = (*contract.inputs, *contract.outputs)
    names = {name: (each, layer) for each in sides for layer, name in enumerate(_names(each, layers))}
    return tuple(_stated(port, *names[port.name], sizes) for port in ports if port.name in names)


def _stated(port: Port, wanted: Wanted, layer: int, sizes: Sizes) -> Port:
    if wanted.state is None:
        return port
    owner, role = wanted.state
    return replace(port, state=StateTensor(layer, role, owner, (sizes[HEADS], LENGTH, sizes[HEAD])))


def _names(wanted: Wanted, layers: int) -> list[str]:
    return [wanted.name] if wanted.state is None else [wanted.of(layer) for layer in range(layers)]


def _fits(wanted: Wanted, port: Port, side: str, sizes: Sizes) -> bool:
    if port.dtype not in wanted.dtypes or len(port.dims) != len(wanted.dims):
        return False
    return all(_dim_fits(name, dim, side, sizes) for name, dim in zip(wanted.dims, port.dims, strict=True))


def _dim_fits(name: str, dim: Dim, side: str, sizes: Sizes) -> bool:
    """Whether a dim fits: a fixed one must be a size, and equal to the known one; output dims are often missing."""
    if name == "1":
        return dim == 1 or isinstance(dim, str)
    if name in sizes:
        return not isinstance(dim, int) or dim == sizes[name]
    return isinstance(dim, str) or name in SIZES or side == "output"


def _described(port: Port) -> str:
    return f"{port.dtype} [{', '.join(map(str, port.dims))}]"


def _expected(wanted: Wanted, sizes: Sizes) -> str:
    dims = ", ".join(str(sizes.get(each, each)) for each in wanted.dims)
    return f"{' or '.join(wanted.dtypes)} [{dims}]"
