"""The calls of the cuda target's graphs: those of the model, and those that move its state, of which NumPy is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from txport.bundles.ports import (
    ADMIT_ROWS,
    ADMIT_SOURCES,
    ALL_ROWS,
    BATCH,
    COUNT,
    ENCODER,
    GROW_ROWS,
    GROW_SOURCES,
    IDS,
    INPUT_IDS,
    LOGITS,
    MODEL,
    MORE,
    NEXT_IDS,
    PAST_LENGTHS,
    PREFILL,
    ROOM,
    ROWS,
    SELECT_ROWS,
    SELECT_SOURCES,
    SOURCE_LENGTHS,
    STEP,
)
from txport.proof.parity.cases import Case
from txport.runtimes.inputs import batch

if TYPE_CHECKING:
    from txport.proof.parity.replay import Call, Reference

Array = NDArray[Any]
BEST = (1, 5)  # how many of the best tokens are asked for
SPARE = 3  # places of a prompt's caches that it does not fill
QUIET = 0.25  # of the size of the model's own keys: over random ones, attention would be sharper than it ever is


def replay_seq2seq(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The encoder, then single tokens over random caches that end at each of `steps`, rows of unequal lengths."""
    given, lengths = batch(case.sources, reference.facts, case.padding)
    source = reference.manifest.graphs[ENCODER].inputs[0].name
    encoded = reference.call(ENCODER, 0, {source: given, SOURCE_LENGTHS: lengths})
    yield encoded
    sizes = [QUIET * _size(each) for each in encoded.expected.values()]
    yield from _steps(reference, case, rng, {SOURCE_LENGTHS: lengths, **encoded.expected}, sizes, 0)
    yield from _moves(reference, encoded.expected, SELECT_SOURCES, GROW_SOURCES, ADMIT_SOURCES)


def replay_causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The prompts, at once and in two parts, then single tokens over random caches."""
    graph, rows = reference.manifest.graphs[PREFILL], len(case.sources)
    ids, _ = batch(case.sources, reference.facts, case.padding)
    size = ids.shape[1]
    dims = {BATCH: rows, ROOM: size + SPARE}
    names = graph.past("row").values()
    room = {name: np.zeros(graph.port(name).shape(dims), np.float32) for name in names}
    filled = reference.call(PREFILL, 0, {INPUT_IDS: ids, PAST_LENGTHS: np.zeros(rows, np.int64), **room})
    yield filled
    if half := size // 2:
        kept = {name: filled.expected[output] for output, name in filled.becomes.items()}
        for array in kept.values():
            array[:, half:] = 0
        rest = {INPUT_IDS: ids[:, half:], PAST_LENGTHS: np.full(rows, half)}
        yield reference.call(PREFILL, 1, {**rest, **kept})
    sizes = [QUIET * _size(each[:, :size]) for each in filled.expected.values()]
    yield from _steps(reference, case, rng, {}, sizes, size)


def replay_encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(MODEL, 0, {INPUT_IDS: ids, SOURCE_LENGTHS: lengths})


def _steps(
    reference: Reference,
    case: Case,
    rng: np.random.Generator,
    shared: Mapping[str, Array],
    sizes: Sequence[float],
    before: int,
) -> Iterator[Call]:
    """Single tokens, as on the cpu target; then what moves the caches that they end with."""
    facts, graph = reference.facts, reference.manifest.graphs[STEP]
    names, own = list(graph.past("row").values()), dict[str, Array]()
    for step, position in enumerate(before + np.cumsum(case.steps, dtype=np.int64)):
        beams = 1 + step % 2
        rows = beams * len(case.sources)
        past_lengths = rng.integers(0, position, rows)
        past_lengths[0] = position - 1
        real = (np.arange(position) < past_lengths[:, None])[:, :, None]
        dims = {ALL_ROWS: rows, ROOM: int(position)}
        own = {
            name: (size * real * rng.standard_normal(graph.port(name).shape(dims))).astype(np.float32)
            for name, size in zip(names, sizes, strict=True)
        }
        tokens = rng.integers(0, facts.writes.size, (len(case.sources), beams))
        for count in BEST:
            asked = {COUNT: np.array([min(count, facts.writes.size)])}
            inputs = {INPUT_IDS: tokens, PAST_LENGTHS: past_lengths, **shared, **own, **asked}
            call = reference.call(STEP, step, inputs)
            every = call.expected[LOGITS].astype(np.float64)
            choices = every - np.logaddexp.reduce(every, axis=1, keepdims=True)
            unknown = (IDS, NEXT_IDS)  # two tokens may be as good
            expected = {name: values for name, values in call.expected.items() if name not in unknown}
            yield replace(call, expected=expected, choices=choices)
    if own:
        yield from _moves(reference, own, SELECT_ROWS, GROW_ROWS, ADMIT_ROWS)


def _moves(reference: Reference, tensors: Mapping[str, Array], select: str, grow: str, admit: str) -> Iterator[Call]:
    """What picks, lengthens and admits rows of tensors; an encoder's outputs have the names of a step's inputs."""
    count = len(next(iter(tensors.values())))
    turned, more = np.arange(count)[::-1].repeat(2), 3

    def moved(role: str, prefix: str, given: Mapping[str, Array], expected: Mapping[str, Array]) -> Call:
        return reference.moving(
            role, {**tensors, **given}, {f"{prefix}.{name}": each for name, each in expected.items()}
        )

    tensors = {name: reference.held(array) for name, array in tensors.items()}
    yield moved(select, "selected", {ROWS: turned}, {name: each[turned] for name, each in tensors.items()})
    grown = {name: np.pad(each, ((0, 0), (0, more), (0, 0))) for name, each in tensors.items()}
    yield moved(grow, "grown", {MORE: np.array([more])}, grown)
    rows, others = np.array([count - 1]), {name: -each[:1] for name, each in tensors.items()}
    admitted = {name: np.concatenate([each[:-1], others[name]]) for name, each in tensors.items()}
    yield moved(admit, "admitted", {ROWS: rows, **{f"others.{name}": each for name, each in others.items()}}, admitted)


def _size(values: Array) -> float:
    """The root of the mean square; 1 for zeros."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0
