"""Reference calls of the portable target."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from txport.models.facts import Task
from txport.proof.parity.cases import Case
from txport.proof.parity.replay import Call, Reference, Replay, source_port
from txport.runtimes.inputs import batch, text_inputs
from txport.system.arrays import Array
from txport.targets import ports


def _seq2seq(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the encoder, then the decoder over random tokens; its cache grows from call to call."""
    facts = reference.facts
    sources = case.sources
    given, lengths = batch(sources, facts, case.padding)
    masks = {}
    kept = {}
    if facts.masks_source:
        mask = (np.arange(given.shape[1])[None, :] < lengths[:, None]).astype(np.int64)
        masks = {ports.ATTENTION_MASK: mask}
        kept = {ports.ENCODER_ATTENTION_MASK: mask}
    encoded = reference.call(ports.ENCODER, 0, {source_port(reference): given, **masks})
    yield encoded
    state = {ports.ENCODER_HIDDEN_STATES: encoded.expected[ports.LAST_HIDDEN_STATE], **kept}
    state |= _empty(reference, len(sources))
    for step, length in enumerate(case.steps):
        tokens = rng.integers(0, facts.writes.size, (len(sources), length))
        call = reference.call(ports.DECODER, step, {ports.INPUT_IDS: tokens, **state})
        yield call
        state |= {name: call.expected[output] for output, name in call.becomes.items()}


def _causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the prompts, padded on the left, then random tokens; the cache grows from call to call."""
    facts = reference.facts
    rows = len(case.sources)
    ids, lengths = batch(case.sources, facts, case.padding)
    size = ids.shape[1]
    mask = (np.arange(size)[None, :] >= size - lengths[:, None]).astype(np.int64)
    places = np.maximum(np.arange(size)[None, :] - (size - lengths)[:, None], 0)
    ids = np.where(mask, np.take_along_axis(ids, places, axis=1), facts.writes.pad)
    state = _empty(reference, rows)
    for step, length in enumerate((None, *case.steps)):
        if length is not None:
            ids = rng.integers(0, facts.writes.size, (rows, length))
            places = mask.sum(axis=1, keepdims=True) + np.arange(length)[None, :]
            mask = np.concatenate([mask, np.ones((rows, length), np.int64)], axis=1)
        call = reference.call(
            ports.DECODER, step, {ports.INPUT_IDS: ids, ports.ATTENTION_MASK: mask, ports.POSITION_IDS: places, **state}
        )
        yield call
        state = {name: call.expected[output] for output, name in call.becomes.items()}


def _encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(ports.MODEL, 0, text_inputs(ids, lengths, reference.facts))


def _empty(reference: Reference, rows: int) -> dict[str, Array]:
    """Return the caches of the portable decoder before the first token, by input."""
    past = reference.manifest.graphs[ports.DECODER].past()
    return {name: np.zeros(each.shape(rows, 0), np.float32) for each, name in past.items()}


REPLAYS: dict[Task, Replay] = {"seq2seq": _seq2seq, "causal": _causal, "encode": _encode}
