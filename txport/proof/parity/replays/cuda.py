"""Reference calls of the cuda target: the graphs with weights, and those that select, lengthen and replace rows.

Letters: B sources, K beams, R = B x K rows, S source length, M capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from txport.models.facts import Task
from txport.proof.parity.cases import Case
from txport.proof.parity.replay import QUIET, SPARE, Call, Reference, Replay, size_of
from txport.runtimes.inputs import batch
from txport.system.arrays import Array
from txport.targets import ports
from txport.targets.ports import Graph

BEST = 5  # tokens that a step returns


def _seq2seq(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the encoder, single tokens over random caches (see `_steps`), and the graphs that move the state."""
    graphs = reference.manifest.graphs
    given, lengths = batch(case.sources, reference.facts, case.padding)
    encoded = reference.call(
        ports.ENCODER, 0, {graphs[ports.ENCODER].inputs[0].name: given, ports.SOURCE_LENGTHS: lengths}
    )
    yield encoded
    sizes = [QUIET * size_of(each) for each in encoded.expected.values()]
    yield from _steps(reference, case, rng, {ports.SOURCE_LENGTHS: lengths, **encoded.expected}, sizes, 0)
    yield from _moves(reference, rng, encoded.expected, ports.SELECT_SOURCES, ports.GROW_SOURCES, ports.ADMIT_SOURCES)


def _causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the prompts in two parts, single tokens over random caches, and the graphs that move the state."""
    graph = reference.manifest.graphs[ports.PREFILL]
    rows = len(case.sources)
    ids, _ = batch(case.sources, reference.facts, case.padding)
    size = ids.shape[1]
    first = -(-ids.shape[1] // 2)
    state = _zeros(graph, rows, size + SPARE)
    for number, part in enumerate((slice(0, first), slice(first, size))):
        if part.start < size:
            before = {ports.PAST_LENGTHS: np.full(rows, part.start)}
            filled = reference.call(ports.PREFILL, number, {ports.INPUT_IDS: ids[:, part].copy(), **before, **state})
            yield filled
            state = {name: filled.expected[output] for output, name in filled.becomes.items()}
    sizes = [QUIET * size_of(each[:, :size]) for each in state.values()]
    yield from _steps(reference, case, rng, {}, sizes, size)


def _encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(ports.MODEL, 0, {ports.INPUT_IDS: ids, ports.SOURCE_LENGTHS: lengths})


def _steps(
    reference: Reference,
    case: Case,
    rng: np.random.Generator,
    shared: Mapping[str, Array],
    sizes: Sequence[float],
    before: int,
) -> Iterator[Call]:
    """Yield single tokens over random caches, which end at `before` + cumsum(`case.steps`).

    The rows have random lengths, and the first row always has the longest past. `sizes` are the RMS of the values in
    each cache. Steps have one and two beams per source in turn. The graphs that move the state get the last caches.
    """
    facts = reference.facts
    graph = reference.manifest.graphs[ports.STEP]
    count = min(BEST, facts.writes.size)
    for step, position in enumerate((before + np.cumsum(case.steps, dtype=np.int64)).tolist()):
        beams = 1 + step % 2
        rows = beams * len(case.sources)
        past_lengths = rng.integers(0, position, rows)
        past_lengths[0] = position - 1
        own = _zeros(graph, rows, position + step % 2)
        for (name, room), size in zip(own.items(), sizes, strict=True):
            real = (np.arange(room.shape[1]) < past_lengths[:, None])[:, :, None]
            own[name] = (size * real * rng.standard_normal(room.shape)).astype(np.float32)
        tokens = rng.integers(0, facts.writes.size, (len(case.sources), beams))
        inputs = {
            ports.INPUT_IDS: tokens,
            ports.PAST_LENGTHS: past_lengths,
            **shared,
            **own,
            ports.COUNT: np.array([count]),
        }
        ordered = {port.name: inputs[port.name] for port in graph.inputs}
        call = reference.call(ports.STEP, step, ordered)
        every = call.expected[ports.LOGITS].astype(np.float64)
        choices = every - np.logaddexp.reduce(every, axis=1, keepdims=True)
        known = {name: values for name, values in call.expected.items() if name not in (ports.IDS, ports.NEXT_IDS)}
        yield replace(call, expected=known, choices=choices)  # two tokens may be equally good
    yield from _moves(reference, rng, own, ports.SELECT_ROWS, ports.GROW_ROWS, ports.ADMIT_ROWS)


def _moves(
    reference: Reference, rng: np.random.Generator, kept: Mapping[str, Array], select: str, grow: str, admit: str
) -> Iterator[Call]:
    """Yield the graphs that select, lengthen and replace rows, in random order; selection repeats at least one row."""
    rows = len(next(iter(kept.values())))
    chosen = rng.integers(0, rows, rows + 1)
    yield reference.call(select, 0, {**kept, ports.ROWS: chosen})
    yield reference.call(grow, 0, {**kept, ports.MORE: np.array([SPARE])})
    some = rng.permutation(rows)[: -(-rows // 2)]
    others = {f"others.{name}": values[some[::-1]] + np.float32(1) for name, values in kept.items()}
    yield reference.call(admit, 0, {**kept, **others, ports.ROWS: some})


def _zeros(graph: Graph, rows: int, room: int) -> dict[str, Array]:
    """Return the caches of rows filled with zeros, each (R, M, numbers), by input."""
    return {
        port.name: np.zeros((rows, room, int(port.dims[2])), np.float32)
        for port in graph.inputs
        if port.state is not None and port.state.owner == "row"
    }


REPLAYS: dict[Task, Replay] = {"seq2seq": _seq2seq, "causal": _causal, "encode": _encode}
