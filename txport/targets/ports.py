"""Inputs and outputs of all graphs; exporters, checks, runtimes and tests take their names from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from txport.models.audio import Features
from txport.models.facts import LENGTH, Facts, Owner, StateTensor

Dim = str | int
UNNAMED = "?"  # a dim that a runtime does not report as the file names it

ENCODER = "encoder"
DECODER = "decoder"
SELECT = "select"
STEP = "step"
PREFILL = "prefill"
MODEL = "model"
GENERATE = "generate"
SELECT_ROWS, SELECT_SOURCES = "select_rows", "select_sources"
GROW_ROWS, GROW_SOURCES = "grow_rows", "grow_sources"
ADMIT_ROWS, ADMIT_SOURCES = "admit_rows", "admit_sources"
MEMORY = (SELECT, SELECT_ROWS, SELECT_SOURCES, GROW_ROWS, GROW_SOURCES, ADMIT_ROWS, ADMIT_SOURCES)  # move a state

INPUT_IDS = "input_ids"
INPUT_FEATURES = "input_features"
ATTENTION_MASK = "attention_mask"
TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - a port
POSITION_IDS = "position_ids"
LAST_HIDDEN_STATE = "last_hidden_state"
ENCODER_HIDDEN_STATES = "encoder_hidden_states"
ENCODER_ATTENTION_MASK = "encoder_attention_mask"
SOURCE_LENGTHS = "source_lengths"
PAST_LENGTHS, PRESENT_LENGTHS = "past_lengths", "present_lengths"
LAST_PLACES = "last_places"
TOTAL = "total_sequence_length"
LOGITS_AT = "logits_at"
CAPACITY = "cache_capacity"
LOGITS = "logits"
COUNT = "k"
LOG_PROBS, IDS, NEXT_IDS = "log_probs", "ids", "next_ids"
ALIGN = "align"
CROSS_ATTENTION = "cross_attention"
ROWS, MORE = "rows", "more"
PREFIX_IDS, MAX_NEW_TOKENS, NUM_BEAMS, LENGTH_PENALTY = "prefix_ids", "max_new_tokens", "num_beams", "length_penalty"
SEQUENCES, SEQUENCES_SCORES, SEQUENCES_LENGTHS = "sequences", "sequences_scores", "sequences_lengths"

BATCH, SOURCE, TARGET = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
PAST_TARGET, PAST_SOURCE = "past_decoder_sequence_length", "past_encoder_sequence_length"
TOKENS, PAST = "sequence_length", "past_sequence_length"
ASKED = "logits_count"
PREFIX, NEW_TOKENS, HYPOTHESES = "prefix_length", "new_tokens", "hypotheses"
BEAMS, ALL_ROWS, ROOM = "beams", "rows", "capacity"  # rows = batch_size x beams; the rows of a source are adjacent


@dataclass(frozen=True)
class Port:
    """One named input or output, its NumPy dtype, and its dims: a number or the name of a dynamic one.

    `state`: the tensor of the model's state that the port holds, if any. `is_attention`: True for cross-attention
    weights.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    state: StateTensor | None = field(default=None, compare=False)
    is_attention: bool = field(default=False, compare=False)

    def shape(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dims as numbers, given the dynamic ones; a dim can be a sum of dynamic dims ("a + b")."""
        return tuple(
            dim if isinstance(dim, int) else sum(lengths[each] for each in dim.split(" + ")) for dim in self.dims
        )

    def fits(self, other: Port) -> bool:
        """Return whether both ports have the same name, dtype and dims; unnamed dims (`?`) match any dim."""
        known = (self.name, self.dtype, len(self.dims)) == (other.name, other.dtype, len(other.dims))
        pairs = zip(self.dims, other.dims, strict=False)
        return known and all(one == two or UNNAMED in (one, two) for one, two in pairs)


@dataclass(frozen=True)
class Graph:
    """One graph of a bundle: its role, its file, and its inputs and outputs in order."""

    role: str
    file: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def port(self, name: str) -> Port:
        """Return the input or output with this name; names are unique."""
        return self._ports[name]

    @cached_property
    def _ports(self) -> dict[str, Port]:
        return {port.name: port for port in (*self.inputs, *self.outputs)}

    def past(self, owner: Owner | None = None) -> Mapping[StateTensor, str]:
        """Return the names of the inputs that hold the state, by its tensors, in order; only of `owner` if given."""
        return self._states["past", owner]

    def present(self, owner: Owner | None = None) -> Mapping[StateTensor, str]:
        """Return the names of the outputs that hold the new state, by its tensors; only of `owner` if it is given."""
        return self._states["present", owner]

    @cached_property
    def _states(self) -> dict[tuple[str, Owner | None], Mapping[StateTensor, str]]:
        sides = {"past": self.inputs, "present": self.outputs}
        owners: tuple[Owner | None, ...] = (None, "row", "source")
        return {(side, owner): _held(sides[side], owner) for side in sides for owner in owners}

    @cached_property
    def becomes(self) -> Mapping[str, str]:
        """Map each output that holds a new state to the input that it becomes in the next run."""
        past = self.past()
        return {name: past[each] for each, name in self.present().items() if each in past}

    @property
    def attention(self) -> str | None:
        """The name of the output with cross-attention weights, or None."""
        return next((port.name for port in self.outputs if port.is_attention), None)

    @property
    def has_weights(self) -> bool:
        """Whether the graph contains weights of the checkpoint."""
        return self.role not in MEMORY

    @property
    def of_source(self) -> tuple[str, ...]:
        """The names of the inputs that all rows of a source share, except its tokens or features."""
        shared = (ENCODER_HIDDEN_STATES, ENCODER_ATTENTION_MASK, *self.past("source").values())
        return tuple(port.name for port in self.inputs if port.name in shared)

    def lengths(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the values of the dynamic dims, given the shapes of inputs by name."""
        return {
            dim: length
            for name, shape in shapes.items()
            for dim, length in zip(self._ports[name].dims, shape, strict=True)
            if isinstance(dim, str)
        }

    def to_dict(self) -> dict[str, object]:
        """Return the JSON values that the manifest contains for this graph."""
        ports = {
            side: [{"name": port.name, "dtype": port.dtype, "dims": list(port.dims)} for port in getattr(self, side)]
            for side in ("inputs", "outputs")
        }
        return {"file": self.file, **ports}


def _held(ports: tuple[Port, ...], owner: Owner | None) -> dict[StateTensor, str]:
    states = {port.state: port.name for port in ports if port.state is not None}
    return {each: name for each, name in states.items() if owner in (None, each.owner)}


def source_port(facts: Facts, dtype: str) -> Port:
    """Return the input of the encoder: features (B, size, frames) in `dtype`, or token ids (B, S)."""
    if isinstance(facts.source, Features):
        return Port(INPUT_FEATURES, dtype, (BATCH, facts.source.size, facts.source.frames))
    return Port(INPUT_IDS, "int64", (BATCH, SOURCE))


def places_of(facts: Facts) -> Dim:
    """Return the number of positions of the encoder output: a number for features, a dynamic dim for tokens."""
    return facts.source.longest if isinstance(facts.source, Features) else SOURCE


def caches(
    facts: Facts, dtype: str, name: Callable[[StateTensor], str], rows: str, lengths: dict[Owner, Dim]
) -> tuple[Port, ...]:
    """Return the ports of the state tensors whose owners are in `lengths`."""
    return tuple(
        Port(name(each), dtype, (rows, *(lengths[each.owner] if dim == LENGTH else dim for dim in each.dims)), each)
        for each in facts.state
        if each.owner in lengths
    )


def outputs_of(facts: Facts, dtype: str) -> tuple[Port, ...]:
    """Return the ports of the outputs of an encoder-only model."""
    return tuple(
        Port(each.name, dtype, (BATCH, *(TOKENS if dim == LENGTH else dim for dim in each.dims)))
        for each in facts.outputs
    )


def single_graph(facts: Facts, dtype: str) -> Graph:
    """Return the graph of a complete search, for a generating model; `dtype` is that of the bundle's other graphs.

    A score of -inf marks an unused hypothesis. Features are fp32 in any precision.
    """
    source = source_port(facts, "float32") if facts.is_encoder_decoder else Port(INPUT_IDS, "int64", (BATCH, TOKENS))
    inputs = [source]
    if facts.is_causal or facts.masks_source:
        inputs.append(Port(ATTENTION_MASK, "int64", source.dims))
    if facts.is_encoder_decoder:  # first tokens of each target, after the start token
        inputs.append(Port(PREFIX_IDS, "int64", (BATCH, PREFIX)))
    inputs += [
        Port(MAX_NEW_TOKENS, "int64", (1,)),
        Port(NUM_BEAMS, "int64", (1,)),
        Port(LENGTH_PENALTY, "float32", (1,)),
    ]
    outputs = (
        Port(SEQUENCES, "int64", (BATCH, HYPOTHESES, NEW_TOKENS)),  # num_beams hypotheses, the best first
        Port(SEQUENCES_SCORES, "float32", (BATCH, HYPOTHESES)),
        Port(SEQUENCES_LENGTHS, "int64", (BATCH, HYPOTHESES)),  # including the end token; the rest is padding
    )
    return Graph(GENERATE, "onnx/generate.onnx", tuple(inputs), outputs)


Contract = Callable[[Facts, str], tuple[Graph, ...]]  # facts, dtype -> the graphs of a bundle


def compare_ports(graph: Graph, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Iterator[str]:
    """Yield the differences between the ports that a runtime found in a graph's file and those of the manifest."""
    for side, expected, found in (("input", graph.inputs, inputs), ("output", graph.outputs, outputs)):
        there, wanted = ({port.name: port for port in ports} for ports in (found, expected))
        yield from (f"{graph.file}: {side} {name} is missing" for name in wanted if name not in there)
        yield from (f"{graph.file}: {side} {name} was not expected" for name in there if name not in wanted)
        for name in (name for name in wanted if name in there and not there[name].fits(wanted[name])):
            yield f"{graph.file}: {side} {name} is {_describe(there[name])}, expected {_describe(wanted[name])}"
        if there.keys() == wanted.keys() and list(there) != list(wanted):
            yield f"{graph.file}: the {side}s are in another order"


def _describe(port: Port) -> str:
    return f"{port.dtype} [{', '.join(map(str, port.dims))}]"
