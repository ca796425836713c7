"""Search for the best target over the runtime seam: greedy and beam. NumPy only; no runtime is special here.

Shape comments: B batch, S source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from txport.beams import Beams
from txport.models.config import TransformerConfig
from txport.models.errors import UnsupportedError
from txport.options import Found, SearchOptions
from txport.runtimes.base import Floats, Ints, Runtime, State

WORTH_DROPPING = 0.25  # of the rows that greedy search still holds must have ended before they leave

Search = Callable[[Runtime, Sequence[Sequence[int]], TransformerConfig, SearchOptions], list[list[Found]]]


def generate(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Search one batch: token ids of each source -> its `nbest` hypotheses, best first."""
    if not 1 <= options.max_new_tokens <= config.max_length:
        limit = f"the model's longest sequence, {config.max_length}"
        raise UnsupportedError(f"max_new_tokens must not exceed {limit}; got {options.max_new_tokens}")
    search: Search = greedy if options.beams == 1 else beam
    return search(runtime, sources, config, options)


def encode(runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, max_length: int) -> State:
    """Pad the sources at the right and encode them."""
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    padded = np.full((len(sources), lengths.max()), config.pad_id, dtype=np.int64)  # (B, S)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    return runtime.encode(padded, lengths, max_length=max_length)


def greedy(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Take the likeliest token until the end token; rows that have ended leave the batch when they are a few."""
    state = encode(runtime, sources, config, options.max_new_tokens)
    tokens = np.full(len(sources), config.bos_id, dtype=np.int64)
    rows = np.arange(len(sources))  # which source each row of the state belongs to
    found = np.full((len(sources), options.max_new_tokens), config.eos_id, dtype=np.int64)
    running = np.ones(len(sources), dtype=np.bool_)
    sums = np.zeros(len(sources), dtype=np.float64)
    for place in range(options.max_new_tokens):
        tokens, log_probs, state = _likeliest(runtime, tokens, state, config.eos_id, place + 1, options)
        found[rows[running], place] = tokens[running]
        if options.scores:
            sums[rows[running]] += log_probs[running]
        running &= tokens != config.eos_id
        left = np.count_nonzero(running)
        if not left:
            break
        if left <= (1 - WORTH_DROPPING) * len(rows) and place + 1 < options.max_new_tokens:
            kept = np.flatnonzero(running)
            state, tokens, rows, running = runtime.select(state, kept), tokens[kept], rows[kept], running[kept]
    ends = found == config.eos_id
    lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, options.max_new_tokens)
    scores = sums / lengths**options.length_penalty if options.scores else np.full(len(sources), np.nan)
    return [
        [Found(tuple(ids[:length]), score)]
        for ids, length, score in zip(found.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    ]


def _likeliest(
    runtime: Runtime, tokens: Ints, state: State, eos_id: int, length: int, options: SearchOptions
) -> tuple[Ints, Floats, State]:
    """Token number `length` of each row, and its log-probability; any number where no scores are wanted."""
    ends_too_soon = length <= options.min_new_tokens
    scores, state = runtime.step(tokens, state, top=2 if ends_too_soon else 1, normalise=options.scores)
    assert scores.ids is not None
    second = (scores.ids[:, 0] == eos_id).astype(np.int64) if ends_too_soon else np.zeros(len(tokens), np.int64)
    rows = np.arange(len(tokens))
    return scores.ids[rows, second], scores.values[rows, second], state


def beam(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Keep the K best running hypotheses of each source; 2K candidates a step, so an ended one starves nobody."""
    state = encode(runtime, sources, config, options.max_new_tokens)
    beams, tokens = Beams(len(sources), options, config.eos_id), np.full(len(sources), config.bos_id, dtype=np.int64)
    for length in range(1, options.max_new_tokens + 1):
        ends_too_soon = length <= options.min_new_tokens
        scores, state = runtime.step(tokens, state, top=2 * options.beams + ends_too_soon)
        assert scores.ids is not None
        if ends_too_soon:
            scores.values[scores.ids == config.eos_id] = -np.inf
        rows = beams.advance(scores.values, scores.ids)
        if not len(rows) or length == options.max_new_tokens:
            break
        if not np.array_equal(rows, np.arange(len(tokens))):
            state = runtime.select(state, rows)
        tokens = beams.last
    return beams.best()
