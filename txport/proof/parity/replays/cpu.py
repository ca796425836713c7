"""Reference calls of the cpu target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from txport.bundles.manifest import Manifest
from txport.models.facts import Task
from txport.proof.parity.cases import Case
from txport.proof.parity.replay import QUIET, SPARE, Call, Reference, Replay, size_of, source_port
from txport.runtimes.inputs import batch
from txport.system.arrays import Array
from txport.targets import ports
from txport.targets.cpu import screens

TOP_COUNT, LIKELIEST = 5, 2


def _seq2seq(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the encoder, then single tokens over random caches; see `_steps`."""
    given, lengths = batch(case.sources, reference.facts, case.padding)
    source_lengths = lengths.astype(np.int32)
    encoded = reference.call(ports.ENCODER, 0, {source_port(reference): given, ports.SOURCE_LENGTHS: source_lengths})
    yield encoded
    sizes = [QUIET * size_of(each) for each in encoded.expected.values()]
    shared = {ports.SOURCE_LENGTHS: source_lengths, **encoded.expected}
    yield from _steps(reference, case, rng, shared, sizes, 0)


def _causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the prompts, with the logits after each, then single tokens over random caches; see `_steps`."""
    graph = reference.manifest.graphs[ports.STEP]
    rows = len(case.sources)
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    size = ids.shape[1]
    room = {name: np.zeros(each.shape(rows, size + SPARE), np.float32) for each, name in graph.past().items()}
    inputs = {ports.INPUT_IDS: ids, **_places(np.full(rows, size - 1), size, np.arange(rows) * size + lengths - 1)}
    filled = _chosen(reference.call(ports.STEP, 0, {**inputs, **room, ports.COUNT: np.array([TOP_COUNT])}))
    yield filled
    sizes = [QUIET * size_of(filled.expected[name][:, :, :size]) for name in graph.present().values()]
    yield from _steps(reference, case, rng, {}, sizes, size)


def _places(last: Array, total: int, logits_at: Array) -> dict[str, Array]:
    """Return the inputs of a causal graph that tell its places; `last` (R,), `logits_at` (A,)."""
    lengths = {ports.LAST_PLACES: last.astype(np.int32), ports.TOTAL: np.array([total], np.int32)}
    return {**lengths, ports.LOGITS_AT: logits_at.astype(np.int64)}


def _encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(ports.MODEL, 0, {ports.INPUT_IDS: ids, ports.SOURCE_LENGTHS: lengths.astype(np.int32)})


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
    each cache. Steps have one and two beams per source in turn.
    """
    facts = reference.facts
    past = reference.manifest.graphs[ports.STEP].past("row")
    shape = (-1, 1) if facts.is_causal else (len(case.sources), -1)
    for step, position in enumerate(before + np.cumsum(case.steps, dtype=np.int64)):
        beams = 1 + step % 2
        rows = beams * len(case.sources)
        past_lengths = rng.integers(0, position, rows).astype(np.int32)
        past_lengths[0] = position - 1
        real = (np.arange(position) < past_lengths[:, None])[:, None, :, None]  # beyond it, a kernel may write zeros
        own = {
            name: (size * real * rng.standard_normal(each.shape(rows, int(position)))).astype(np.float32)
            for (each, name), size in zip(past.items(), sizes, strict=True)
        }
        tokens = rng.integers(0, facts.writes.size, rows).reshape(shape)
        fixed = {ports.PAST_LENGTHS: past_lengths, ports.CAPACITY: np.array([position], np.int32)}
        if facts.is_causal:
            fixed = _places(past_lengths, int(position), np.arange(rows))
        for count in _counts(reference.manifest):
            asked = {ports.COUNT: np.array([count])}
            if facts.attention is not None:
                asked = {ports.ALIGN: np.array([count > 0]), **asked}
            given: dict[str, Array] = {ports.INPUT_IDS: tokens, **fixed, **shared, **own, **asked}
            yield _chosen(reference.call(ports.STEP, step, given))


def _chosen(call: Call) -> Call:
    """Return a call of a step with what its tokens are chosen from; tokens may tie, and logits may be left out."""
    is_short = call.inputs[ports.COUNT][0] < 0
    every = call.expected[ports.LOGITS].astype(np.float64)
    choices = every if is_short else every - np.logaddexp.reduce(every, axis=1, keepdims=True)
    unknown = (ports.IDS, ports.LOGITS) if is_short else (ports.IDS,)
    expected = {name: values for name, values in call.expected.items() if name not in unknown}
    return replace(call, expected=expected, choices=choices)


def _counts(manifest: Manifest) -> list[int]:
    """Return the numbers of best tokens to request; like the driver, use screening only if its sums are exact."""
    from txport.runtimes.ort.sessions import may_saturate

    facts = manifest.facts
    counts = [TOP_COUNT]
    if not (screens(facts, manifest.precision) and may_saturate()):
        counts.append(-LIKELIEST)
    return [max(-facts.writes.size, min(count, facts.writes.size)) for count in counts]


REPLAYS: dict[Task, Replay] = {"seq2seq": _seq2seq, "causal": _causal, "encode": _encode}
