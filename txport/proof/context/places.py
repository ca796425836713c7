"""Where parts run: at the end of a context, over random caches, with values that show which positions were read.

Letters: N query heads, G key/value heads, H head size, T new tokens, P past tokens, M capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from txport.models.facts import Facts, StateTensor
from txport.system.arrays import Array
from txport.targets import ports
from txport.targets.ports import Graph, Port

TAIL = 8  # new tokens after a full cache
PADDING = 5  # masked positions at the end of a source
FILLED = 0.75  # of a cache whose other positions must be ignored
SCATTERED = 16  # random positions that are masked, where the graph has a mask, besides one beyond each power of two
MOST_SCORES = 1 << 24  # numbers in a tensor of scores of a prompt or a source: 64 MB in fp32
SMALLEST_POWER = 10  # kernels and masks may change at powers of two from 1,024 on


@dataclass(frozen=True)
class Place:
    """A call of a part: `past` tokens, then `new` ones, in caches with room for `room` positions.

    `picked` are the new tokens whose outputs are compared. `hidden` are the masked positions. Each new token sees later
    ones if `both_ways`. `source` is the number of source positions; 0 without one.
    """

    name: str
    past: int
    new: int
    room: int
    picked: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    hidden: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    both_ways: bool = False
    source: int = 0

    @property
    def size(self) -> int:
        """The number of tokens after the call."""
        return self.past + self.new

    @property
    def places(self) -> Array:
        """The positions of the compared tokens."""
        found: Array = self.past + self.picked
        return found

    def emphasised(self, windows: tuple[int, ...], most: int) -> Array:
        """Return the positions below `most` whose values are emphasised: edges of masks, windows and powers of two."""
        powers = [1 << power for power in range(SMALLEST_POWER, max(SMALLEST_POWER, most.bit_length()))]
        ends = [0, self.past, self.size, *powers, *(self.past + each for each in (1, self.new // 2))]
        edges = [edge + beside for edge in ends for beside in (-1, 0, 1)]
        edges += [int(at) - window + beside for at in self.places for window in windows for beside in (-1, 0, 1)]
        found = np.unique(np.concatenate([np.array(edges), self.hidden]))
        return found[(found >= 0) & (found < most)]


def fitting(numbers: int) -> int:
    """Return for how many tokens the scores of all pairs fit into memory, with so many numbers for a pair."""
    return math.isqrt(MOST_SCORES // numbers)


def places_of(graph: Graph, facts: Facts, numbers: int, rng: np.random.Generator, *, picks: bool) -> Iterator[Place]:
    """Yield the calls of a graph at the end of its context, for an attention with so many numbers for a pair of tokens.

    If it does not pick queries, a source is only so long that its scores fit into memory.
    """
    if graph.role in (ports.ENCODER, ports.MODEL):
        longest = facts.reads.longest
        size = longest if picks else min(longest, fitting(numbers))
        padding = np.arange(size - PADDING, size)
        yield Place("longest source", 0, size, size, _some(size - PADDING, TAIL, rng), padding, both_ways=True)
        return
    longest = facts.writes.longest
    source = facts.reads.longest if facts.is_encoder_decoder else 0
    one = np.zeros(1, np.int64)
    if graph.role == ports.STEP:
        yield Place("last position", longest - 1, 1, longest, one, source=source)
        yield Place("cache not full", int(FILLED * longest), 1, longest, one, source=source)
        if all(port.name != ports.LAST_PLACES for port in graph.inputs):
            return  # it reads single tokens only
    is_masked = any(port.name == ports.ATTENTION_MASK for port in graph.inputs)
    hidden = _masked(longest - TAIL, rng) if is_masked else one[:0]
    yield Place("last positions", longest - TAIL, TAIL, longest, np.arange(TAIL), hidden, source=source)
    size = min(longest, fitting(numbers))
    yield Place("long prompt", 0, size, size, _some(size, TAIL, rng), source=source)


def _masked(past: int, rng: np.random.Generator) -> Array:
    """Return random positions of a cache that are masked, some of them beyond each power of two."""
    beyond = [rng.integers(1 << power, past) for power in range(SMALLEST_POWER, past.bit_length()) if 1 << power < past]
    return np.unique(np.concatenate([rng.integers(0, past, SCATTERED), np.array(beyond, np.int64)]))


def _some(size: int, count: int, rng: np.random.Generator) -> Array:
    """Return some of `size` tokens: the last ones, and random ones of the second half."""
    last = np.arange(max(0, size - count), size)
    return np.unique(np.concatenate([last, rng.integers(size // 2, size, count)]))


def feed_of(graph: Graph, place: Place) -> dict[str, Array]:
    """Return the inputs of a graph at a place, except its caches and hidden states."""
    seen = np.ones((1, place.size))
    seen[:, place.hidden] = 0
    values: Mapping[str, object] = {
        ports.INPUT_IDS: np.zeros((1, place.new)),
        ports.ATTENTION_MASK: seen,
        ports.POSITION_IDS: place.past + np.arange(place.new)[None],
        ports.PAST_LENGTHS: [place.past],
        ports.LAST_PLACES: [place.size - 1],
        ports.TOTAL: [place.size],
        ports.LOGITS_AT: np.arange(place.new),
        ports.CAPACITY: [place.room],
        ports.SOURCE_LENGTHS: [place.source or place.size - len(place.hidden)],
        ports.ENCODER_ATTENTION_MASK: np.ones((1, place.source)),
        ports.ENCODER_HIDDEN_STATES: np.zeros((1, place.source, 1)),
    }
    return {port.name: np.array(values[port.name], port.dtype) for port in graph.inputs if port.name in values}


class Caches:
    """Random caches of a place: those of all layers have the same values, as layers run one by one.

    Values at `emphasised` positions are larger by the square root of the number of positions: then each of them changes
    an output as much as all others together.
    """

    def __init__(self, facts: Facts, place: Place, rng: np.random.Generator) -> None:
        self._place = place
        self._made: dict[object, Array] = {}
        self._facts = facts
        self._rng = rng

    def values(self, state: StateTensor) -> Array:
        """Return the cache of a state tensor in fp32: (1, G, M, H)."""
        most = self._place.room if state.owner == "row" else self._place.source
        key = (state.owner, state.role, state.dims)
        if key not in self._made:
            drawn = self._rng.standard_normal(state.shape(1, most), dtype=np.float32)
            if state.role == "value":
                emphasise(drawn, self._place.emphasised(self._facts.windows, most), most)
            self._made[key] = drawn
        return self._made[key]

    def of_port(self, port: Port, state: StateTensor) -> Array:
        """Return the cache of a port, in its layout and dtype."""
        values = self.values(state)
        if ports.ROOM not in port.dims and state.owner == "row":  # a cache that grows
            values = values[:, :, : self._place.past]
        if len(port.dims) == 3:
            values = values.transpose(0, 2, 1, 3).reshape(1, values.shape[2], -1)
        return np.ascontiguousarray(values, port.dtype)


def emphasise(values: Array, positions: Array, count: int) -> None:
    """Enlarge values (..., M, H) at some positions by the square root of the number of positions, in place."""
    values[..., positions, :] *= np.float32(math.sqrt(count))
