"""The driver of cpu bundles: all tensors are in our own memory, bound once and written in place.

The keys and values of a source are computed once and stored once for all its beams. Those of rows are in buffers of
a fixed capacity, which doubles when it is full. A step allocates nothing: it writes the tokens, runs the graph, and
adds one to the lengths. Each row has its own length, so a new source can use the slots of a finished one.
Letters: B sources, K beams, R = B x K rows, L layers, G key/value heads, M capacity, H head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.bundles.bundle import Bundle
from txport.models.facts import Owner
from txport.runtimes.base import Floats, GraphPorts, Inputs, Ints, Outputs, Scores, running, scores
from txport.runtimes.inputs import PROMPT_PART, SEVERAL, outputs_of, parts_of_prompt
from txport.runtimes.ort.caches import FusedState, Ready, Rows, Source, move, pick_sources, put_rows
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.parts import LONGEST, TOGETHER, Parts
from txport.runtimes.ort.placement import placement
from txport.runtimes.ort.sessions import Sessions, may_saturate, session_ports, sums_one_row_apart
from txport.runtimes.slots import seat
from txport.system.arrays import Array, Hold, Pool
from txport.targets.cpu import LIKELIEST, screens
from txport.targets.ports import (
    ALIGN,
    CAPACITY,
    COUNT,
    CROSS_ATTENTION,
    ENCODER,
    IDS,
    INPUT_FEATURES,
    INPUT_IDS,
    LAST_PLACES,
    LOG_PROBS,
    LOGITS,
    LOGITS_AT,
    MODEL,
    PAST_LENGTHS,
    SOURCE_LENGTHS,
    STEP,
    TOTAL,
)

FIRST_CAPACITY = 32
SLACK = 1.25  # room for sources relative to their number, where a running state is extended
ENCODED_TOGETHER = 1024  # tokens per run; the activations of more tokens do not fit the processor's caches

LOGITS_TOGETHER = 1 << 24  # numbers (64 MB) that the logits of one run of several texts may have
WASTE = 8  # tokens of padding that take as long as one more run
NOBODY = -1  # the token of an unused slot
UNWRITTEN = -1  # the number of the write of a position without one


class Binding:
    """The step graph's inputs and outputs bound to the memory of one state, valid until its shapes change.

    There is one session binding for each number of most probable tokens, with and without attention. A single row runs
    beside an unused one if the runtime runs two at least.
    """

    def __init__(self, runtime: FusedRuntime, state: FusedState) -> None:
        size = max(state.size, runtime.least_rows)
        sources = max(len(state.source.lengths), runtime.least_rows // state.beams)
        self.hold = Hold()
        self.tokens = np.zeros((sources, state.beams) if runtime.has_source else (size, 1), np.int64)
        self.flat = self.tokens.ravel()
        self.attention = (size, state.source.caches.shape[3])
        self._copied: list[tuple[Array, Array]] = []  # to, from: before each run
        self.logits = runtime.pool.empty(self.hold, (size, runtime.facts.writes.size))
        self._session = runtime.sessions[STEP]
        self._aligns = runtime.facts.attention is not None
        self._seeking: dict[tuple[int, bool], tuple[Any, Scores]] = {}
        self._values: list[Any] = []  # bound OrtValues must outlive the binding
        capacity = np.array([state.rows.caches.shape[3]], np.int32)
        inputs: dict[str, Array] = {INPUT_IDS: self.tokens}
        if runtime.has_source:
            heard = self._lengths(state.source.lengths, sources, unused=1)
            inputs |= {PAST_LENGTHS: self._lengths(state.lengths, size), CAPACITY: capacity, SOURCE_LENGTHS: heard}
        else:
            inputs |= {LAST_PLACES: self._lengths(state.lengths, size), TOTAL: capacity, LOGITS_AT: np.arange(size)}
        graph = runtime.graphs[STEP]
        inputs.update(zip(graph.past("source").values(), state.source.room[:, :sources], strict=True))
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        self._outputs = {LOGITS: ort.OrtValue.ortvalue_from_numpy(self.logits)}
        pairs = zip(graph.past("row").values(), graph.present("row").values(), strict=True)
        for (past, present), array in zip(pairs, state.rows.caches, strict=True):
            # same memory for input and output: the kernel writes in place
            self._inputs[past] = self._outputs[present] = ort.OrtValue.ortvalue_from_numpy(array[:size])

    def _lengths(self, lengths: NDArray[np.int32], size: int, unused: int = 0) -> NDArray[np.int32]:
        """Return the lengths (N,), or an array (size,) that has them and those of unused rows."""
        if len(lengths) == size:
            return lengths
        every = np.full(size, unused, np.int32)
        self._copied.append((every[: len(lengths)], lengths))
        return every

    def run(self, tokens: Ints, count: int, align: bool) -> Scores:
        """Run one step with tokens (R,) and return its scores, which the next step overwrites.

        `count` is the graph's input `k`: 0 requests all logits only; a positive number also log-probs of so many
        most probable tokens; a negative one only the unnormalised values of `-count` tokens.
        """
        if (count, align) not in self._seeking:
            self._seeking[count, align] = self._seek(count, align)
        io, scores = self._seeking[count, align]
        self.flat[: len(tokens)] = tokens
        for to, lengths in self._copied:
            to[:] = lengths
        with running(STEP, "ONNX Runtime"):
            self._session.run_with_iobinding(io)
        return scores if len(tokens) == len(self.flat) else scores.of(np.arange(len(tokens)))

    def _seek(self, count: int, align: bool) -> tuple[Any, Scores]:
        asked = {COUNT: np.array([count])}
        if self._aligns:
            asked[ALIGN] = np.array([align])
        inputs = {**self._inputs, **{name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in asked.items()}}
        outputs = dict(self._outputs)
        scores = Scores(self.logits, None)
        if count < 0:
            del outputs[LOGITS]
        if count:
            shape = (len(self.logits), abs(count))
            scores = Scores(np.empty(shape, np.float32), np.empty(shape, np.int64))
            outputs[LOG_PROBS] = ort.OrtValue.ortvalue_from_numpy(scores.values)
            outputs[IDS] = ort.OrtValue.ortvalue_from_numpy(scores.ids)
        if align:
            scores = scores._replace(attention=np.empty(self.attention, np.float32))
            outputs[CROSS_ATTENTION] = ort.OrtValue.ortvalue_from_numpy(scores.attention)
        self._values += [*inputs.values(), *outputs.values()]
        io = self._session.io_binding()
        for name, value in inputs.items():
            io.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            io.bind_ortvalue_output(name, value)
        return io, scores


class FusedRuntime:
    """`Runtime` over the sessions of a cpu bundle. States are changed in place: use the last returned one only."""

    def __init__(self, bundle: Bundle, sessions: Sessions, parts: Parts | None = None) -> None:
        self.facts = bundle.manifest.facts
        self.sessions = sessions
        self._parts = parts  # of batches of an encoder-only model; None: they run one after the other
        self.pool = Pool()
        self.graphs = bundle.manifest.graphs
        self.has_source = self.facts.is_encoder_decoder
        has_four_bits = any(form.bits == 4 for form in bundle.manifest.forms.values())
        is_free = bundle.manifest.rows is None  # no row depends on the others
        self.least_rows = SEVERAL if is_free and has_four_bits and sums_one_row_apart() else 1  # of a run
        self.encoded: dict[bytes, NDArray[np.float32]] | None = None  # kept keys and values by features; None: none are
        # its bound requires exact sums, and the session option for these does not apply to subgraphs
        self._screens = screens(self.facts, bundle.manifest.precision) and not may_saturate()

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> FusedState:
        """See `Runtime.start`."""
        if not self.has_source:
            return self._prefill(source, source_lengths, max_length)
        batch = len(source)
        size = source.shape[1] if self.facts.masks_source else self.facts.reads.longest
        # else the rounding of a row would depend on the length of other rows
        held = self._make_source(batch, size + -size % TOGETHER, source_lengths)
        for part in parts_of(source_lengths if self.facts.masks_source else np.full(batch, size)):
            self._encode(source[part], held.lengths[part], held.caches[:, part])
        return FusedState(held, partial(self._make_rows, batch, min(FIRST_CAPACITY, max_length)), max_length)

    def _prefill(self, prompts: Inputs, lengths: Ints, max_length: int) -> FusedState:
        """Fill the rows' caches with the prompts; the first step returns the logits that are computed here."""
        batch, size = prompts.shape
        padded = min(size + TOGETHER, self.facts.writes.longest)
        capacity = max(padded, min(max(FIRST_CAPACITY, 2 * size), max_length))
        nothing = self._make_source(batch, 0, np.zeros(batch, np.int64))
        state = FusedState(nothing, partial(self._make_rows, batch, capacity), max_length)
        last = lengths - 1
        for rows in parts_of(lengths, PROMPT_PART):
            for row, place, logits in self._run(prompts, lengths, last, rows, state.rows.caches[:, rows]):
                state.ready.update(zip(row.tolist(), map(Ready, prompts[row, place].tolist(), logits), strict=True))
        state.rows.origin[:batch, :size] = np.arange(batch * size).reshape(size, batch).T
        state.writes = batch * size
        state.lengths[:] = lengths
        return state

    def forward(self, texts: Ints, lengths: Ints, first: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """See `OnePassRuntime.forward`."""
        most = LOGITS_TOGETHER // self.facts.writes.size
        for rows in parts_of(lengths, PROMPT_PART, lengths - first, most):
            padded = min(int(lengths[rows].max()) + TOGETHER, self.facts.writes.longest)
            held = self._make_rows(rows.stop - rows.start, padded)
            yield from self._run(texts, lengths, first, rows, held.caches)

    def _run(
        self, texts: Inputs, lengths: Ints, first: Ints, rows: slice, caches: NDArray[np.float32]
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Run some rows of texts (B, S) together, long ones in parts, into their caches (2 L, N, G, M, H).

        They are padded as sources are. Yield the logits from the places `first` (B,) on, as `forward` does.
        """
        longest = int(lengths[rows].max())
        longest += min(-longest % TOGETHER, min(caches.shape[3], self.facts.writes.longest) - longest)
        tokens = texts[rows, :longest]
        tokens = np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])))
        for part in parts_of_prompt(longest, PROMPT_PART):
            places = np.arange(part.start, part.stop)
            row, at = np.nonzero((first[rows, None] <= places) & (places < lengths[rows, None]))
            logits = self._fill(tokens[:, part], caches, part, row * len(places) + at)
            if len(row):
                yield rows.start + row, part.start + at, logits

    def _fill(self, prompts: Inputs, caches: NDArray[np.float32], places: slice, asked: Ints) -> Floats:
        """Run prompt tokens (B, S) into these positions of caches (2 L, B, G, M, H), which are the last filled ones.

        Returns the logits (N, V) of the tokens `asked` (N,), indices into the flattened B x S tokens.
        """
        graph = self.graphs[STEP]
        last = np.full(len(prompts), places.stop - 1, np.int32)
        lengths = {LAST_PLACES: last, TOTAL: np.array([places.stop], np.int32)}
        # at least one: ONNX Runtime up to 1.30 kills the process if the TopK of experts has no rows
        every = np.resize(asked if len(asked) else np.zeros(1, np.int64), max(len(asked), self.least_rows))
        wanted = {LOGITS_AT: every, COUNT: np.zeros(1, np.int64)}
        logits = np.empty((len(every), self.facts.writes.size), np.float32)
        inputs: dict[str, Array] = {INPUT_IDS: np.ascontiguousarray(prompts), **lengths, **wanted}
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        own = [ort.OrtValue.ortvalue_from_numpy(array[: len(prompts)]) for array in caches]
        io = self.sessions[STEP].io_binding()
        for name, value in (*values.items(), *zip(graph.past("row").values(), own, strict=True)):
            io.bind_ortvalue_input(name, value)
        made = ort.OrtValue.ortvalue_from_numpy(logits)
        for name, value in (*zip(graph.present("row").values(), own, strict=True), (LOGITS, made)):
            io.bind_ortvalue_output(name, value)
        with running(STEP, "ONNX Runtime"):
            self.sessions[STEP].run_with_iobinding(io)
        return logits[: len(asked)]

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`."""
        batch, size = source.shape
        lengths = source_lengths.astype(np.int32)
        outputs = {each.name: np.zeros(each.shape(batch, size), np.float32) for each in self.facts.outputs}

        def compute(sessions: Sessions, rows: slice, width: int) -> None:
            ids = self._padded(source[rows, :width])
            found = run_session(sessions, MODEL, list(outputs), {INPUT_IDS: ids, SOURCE_LENGTHS: lengths[rows]})
            for name, array in outputs_of(self.facts, found, len(ids), min(width, size), ids.shape[1]).items():
                outputs[name][rows][tuple(map(slice, array.shape))] = array

        if self._parts is not None and batch > 1 and size <= LONGEST:
            self._parts.run(compute, source_lengths)
        else:
            count = max(1, ENCODED_TOGETHER // size)
            for first in range(0, batch, count):
                compute(self.sessions, slice(first, first + count), size)
        return outputs

    def _encode(self, source: Inputs, lengths: NDArray[np.int32], caches: NDArray[np.float32]) -> None:
        """Fill the first positions of the caches (2 L, B, N, S, H) of sources, whose padding may be longer than S."""
        if self.facts.masks_source:
            given = self._padded(source[:, : lengths.max()])
            size = given.shape[1]
        else:
            given, size = np.ascontiguousarray(source), self.facts.reads.longest
        key = b"" if self.encoded is None else given.tobytes()
        if self.encoded is not None and key in self.encoded:
            caches[..., :size, :] = self.encoded[key]
            return
        hold = Hold()
        is_whole = size == caches.shape[3]
        made = caches if is_whole else self.pool.empty(hold, (*caches.shape[:3], size, caches.shape[4]))
        io = self.sessions[ENCODER].io_binding()
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in (given, lengths, *made)]
        io.bind_ortvalue_input(INPUT_IDS if self.facts.masks_source else INPUT_FEATURES, values[0])
        io.bind_ortvalue_input(SOURCE_LENGTHS, values[1])
        for name, value in zip(self.graphs[ENCODER].present().values(), values[2:], strict=True):
            io.bind_ortvalue_output(name, value)
        with running(ENCODER, "ONNX Runtime"):
            self.sessions[ENCODER].run_with_iobinding(io)
        if not is_whole:
            caches[..., :size, :] = made
        if self.encoded is not None:
            self.encoded[key] = made.copy()

    def step(
        self, tokens: Ints, state: FusedState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, FusedState]:
        """See `Runtime.step` and `ContinuousRuntime`."""
        if state.ready:
            return self._first_step(tokens, state, top, normalise), state
        if state.is_full:
            return self._step(tokens, state, top, normalise, align), state
        seated = np.full(state.size, NOBODY)
        seated[state.slots] = tokens
        return self._step(seated, state, top, normalise, align).of(state.slots), state

    def _first_step(self, tokens: Ints, state: FusedState, top: int | None, normalise: bool) -> Scores:
        """Step where some rows are at their first one: the run of their prompt has computed their scores.

        Other rows, if there are any, run. That run writes to the caches of all slots. What it writes for the rows of
        the prompts is after their ends, and their next steps replace it; the last of all positions is read no more.
        """
        is_used = tokens >= 0
        is_first = np.array([slot in state.ready for slot in state.slots.tolist()]) & is_used
        filled = state.slots[is_first]
        ready = [state.ready[slot] for slot in filled.tolist()]
        state.ready = {}
        if not ready:
            return self.step(tokens, state, top=top, normalise=normalise)[0]
        assert tokens[is_first].tolist() == [each.token for each in ready], "a first step takes a prompt's last token"
        known = scores(np.array([each.logits for each in ready]), top, normalise)
        if is_first.all():
            return known
        if is_used[~is_first].any():
            lengths = state.lengths[filled]
            state.lengths[filled] = np.minimum(lengths, state.max_length - 1)
            seated = np.full(state.size, NOBODY)
            seated[state.slots] = tokens
            found = self._step(seated, state, top, normalise, align=False).of(state.slots)
            state.lengths[filled] = lengths
        else:
            found = scores(np.zeros((len(tokens), self.facts.writes.size), np.float32), top, normalise)
        found.values[is_first] = known.values
        if found.ids is not None and known.ids is not None:
            found.ids[is_first] = known.ids
        return found

    def _step(self, tokens: Ints, state: FusedState, top: int | None, normalise: bool, align: bool) -> Scores:
        """Run a step of all slots; tokens (R,) are negative for unused slots."""
        resting = tokens < 0
        some_rest = bool(resting.any())
        if some_rest:
            tokens = np.where(resting, 0, tokens)
            state.lengths[resting] = 0
        length = state.length
        assert length < state.max_length, "a step beyond max_length"
        if length == state.rows.caches.shape[3]:
            self._grow(state)
        binding = state.binding = state.binding or Binding(self, state)
        top = None if top is None else min(top, self.facts.writes.size)
        if top is None or normalise:
            found = binding.run(tokens, top or 0, align)
        elif self._screens and top <= LIKELIEST:
            found = binding.run(tokens, -top, align)
        else:  # NumPy is faster than ONNX Runtime's operators
            every = binding.run(tokens, 0, align)
            found = scores(every.values, top, normalise)._replace(attention=every.attention)
        rows = np.arange(state.size)
        state.rows.origin[rows, state.lengths] = rows + state.writes
        state.rows.origin[state.size : self.least_rows, 0] = UNWRITTEN  # of a row beside a single one
        state.writes += len(state.rows.origin)
        state.lengths += ~resting if some_rest else 1
        return found

    def select(self, state: FusedState, rows: Ints) -> FusedState:
        """See `Runtime.select`; a row is copied from the first position on that differs from the slot's content."""
        seated = seat(state.slots[rows], len(state.source.lengths), state.beams)
        if len(seated.sources) < len(state.source.lengths):
            state.source = pick_sources(state.source, seated.sources)
            state.binding = None
        lengths = np.zeros(len(seated.sources) * seated.width, np.int32)
        lengths[seated.slots] = state.lengths[seated.old]
        pairs = zip(seated.slots.tolist(), seated.old.tolist(), strict=True)
        state.ready = {new: state.ready[old] for new, old in pairs if old in state.ready}
        if seated.width == state.beams and len(lengths) == len(state.lengths):
            state.lengths[:] = lengths
        else:
            state.beams = seated.width
            state.lengths = lengths
            state.binding = None
        state.place(seated.slots)
        moves = np.minimum(np.arange(state.size), len(state.rows.origin) - 1)  # unused slots keep their content
        moves[seated.slots] = seated.old
        if state.size > len(state.rows.origin):
            state.rows = self._pick_rows(state, moves, state.rows.caches.shape[3])
            state.binding = None
        else:
            move(state.rows, moves, state.length)
        return state

    def admit(self, state: FusedState, places: Ints, others: FusedState, chosen: Ints) -> FusedState:
        """See `ContinuousRuntime.admit`."""
        size = state.source.caches.shape[3]
        wider = others.source.caches.shape[3]
        if wider > size:
            state.source = self._widen(state.source, wider)
            state.binding = None
        put_rows(state.source.caches, places, others.source.caches, chosen, wider)
        state.source.lengths[places] = others.source.lengths[chosen]
        state.lengths.reshape(-1, state.beams)[places] = 0
        if others.length:
            self._admit_rows(state, places * state.beams, others, chosen)
        return state

    def _admit_rows(self, state: FusedState, rows: Ints, others: FusedState, chosen: Ints) -> None:
        """Copy prompts that were filled into another state to some rows."""
        lengths = others.lengths[chosen]
        longest = int(lengths.max())
        if longest > state.rows.caches.shape[3]:
            self._grow(state, longest)
        put_rows(state.rows.caches, rows, others.rows.caches, chosen, longest)
        state.rows.origin[rows, :longest] = state.writes + np.arange(len(rows) * longest).reshape(len(rows), longest)
        state.writes += len(rows) * longest
        state.lengths[rows] = lengths
        pairs = zip(rows.tolist(), chosen.tolist(), strict=True)
        state.ready.update({new: others.ready[old] for new, old in pairs if old in others.ready})

    def extend(self, state: FusedState, sources: int) -> FusedState:
        """See `ContinuousRuntime.extend`; new slots have old content or zeros, and sources of one position."""
        assert state.is_full, "only whole sources can be extended"
        old = state.source
        size = sources * state.beams
        more = int(sources * SLACK)  # so that not every extension moves all
        if sources > old.room.shape[1]:
            hold = Hold()
            room = self.pool.zeros(hold, (old.room.shape[0], more, *old.room.shape[2:]))
            room[:, : len(old.lengths)] = old.caches
            old = Source(hold, room, old.lengths)
        if size > len(state.rows.origin):
            moves = np.minimum(np.arange(more * state.beams), state.size - 1)
            state.rows = self._pick_rows(state, moves, state.rows.caches.shape[3])
        lengths = np.full(sources, min(1, old.room.shape[3]), np.int32)
        lengths[: len(old.lengths)] = old.lengths
        rows = np.zeros(size, np.int32)
        rows[: state.size] = state.lengths
        state.source = Source(old.hold, old.room, lengths)
        state.lengths = rows
        state.binding = None
        state.place(np.arange(size))
        return state

    def reserve(self, state: FusedState, rows: int) -> FusedState:
        """See `ContinuousRuntime.reserve`; room for two rows is enough, and makes the first step faster."""
        if not self.has_source:
            return state  # rows share no attention over a source
        assert state.length == state.writes == 0, "room is made before the first step"
        count = len(state.slots)
        room = min(rows, SEVERAL)
        state.beams = room
        state.lengths = np.zeros(count * room, np.int32)
        state.rows = self._make_rows(count * room, state.rows.caches.shape[3])
        state.place(np.arange(count) * room)
        return state

    def _padded(self, source: Inputs) -> Inputs:
        """Return sources (B, S) with padding to a multiple of `TOGETHER` tokens, within the model's limit.

        Alone, a source whose attention sums a rest would have other last bits than beside a longer one.
        """
        size = source.shape[1]
        padding = min(-size % TOGETHER, self.facts.reads.longest - size)
        return np.pad(source, ((0, 0), (0, padding))) if padding else np.ascontiguousarray(source)

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return session_ports(self.sessions[role])

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """See `GraphRuntime.run_graph`."""
        return run_session(self.sessions, role, [port.name for port in self.graphs[role].outputs], inputs)

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return placement(self.sessions)

    def _make_source(self, batch: int, size: int, lengths: Ints | NDArray[np.int32]) -> Source:
        hold = Hold()
        shape = self._shape("source", max(batch, self.least_rows), size)
        return Source(hold, self.pool.zeros(hold, shape), lengths.astype(np.int32))

    def _make_rows(self, size: int, capacity: int) -> Rows:
        hold = Hold()
        size = max(size, self.least_rows)
        caches = self.pool.zeros(hold, self._shape("row", size, capacity))
        return Rows(hold, caches, np.full((size, capacity), UNWRITTEN))

    def _shape(self, owner: Owner, rows: int, length: int) -> tuple[int, ...]:
        """Return the shape of all cache tensors of rows or of sources together; they have the same dims."""
        owned = self.facts.owned(owner)
        return (len(owned), *owned[0].shape(rows, length)) if owned else (0, rows, 1, length, 1)

    def _pick_rows(self, state: FusedState, rows: Ints, capacity: int) -> Rows:
        """Return the given rows in new memory."""
        picked = self._make_rows(len(rows), capacity)
        length, places = state.length, slice(len(rows))
        put_rows(picked.caches, places, state.rows.caches, rows, length)
        picked.origin[places, :length] = state.rows.origin[rows, :length]
        return picked

    def _widen(self, source: Source, size: int) -> Source:
        """Return the source in new memory with room for `size` positions."""
        old = source.caches
        wider = self._make_source(old.shape[1], size, source.lengths)
        wider.caches[:, :, :, : old.shape[3]] = old
        return wider

    def _grow(self, state: FusedState, least: int = 0) -> None:
        old = state.rows
        kept = slice(state.size)
        grown = self._make_rows(state.size, max(least, min(2 * old.caches.shape[3], state.max_length)))
        put_rows(grown.caches, kept, old.caches, kept, state.length)
        grown.origin[kept, : state.length] = old.origin[kept, : state.length]
        state.rows = grown
        state.binding = None


def run_session(sessions: Sessions, role: str, names: list[str], inputs: dict[str, Array]) -> dict[str, Array]:
    """Run a graph; return the outputs `names`."""
    with running(role, "ONNX Runtime"):
        return dict(zip(names, sessions[role].run(names, inputs), strict=True))


def parts_of(lengths: Ints, longest: int | None = None, asked: Ints | None = None, most: int = 0) -> list[slice]:
    """Split sources (B,) into parts that run together: with few tokens in all, and with little padding.

    A source of more than `longest` tokens runs alone. With the numbers of places of each that are `asked` (B,), those
    of several sources are at most `most` in all.
    """
    counts = np.zeros_like(lengths) if asked is None else asked
    parts = []
    first = wide = total = places = 0
    for number, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        largest = max(wide, length)
        tokens = largest * (number + 1 - first)
        is_full = tokens > ENCODED_TOGETHER or tokens - total - length > WASTE or places + count > most
        if number > first and (is_full or (longest is not None and largest > longest)):
            parts.append(slice(first, number))
            first, total, places, largest = number, 0, 0, length
        wide = largest
        total += length
        places += count
    return [*parts, slice(first, len(lengths))]
