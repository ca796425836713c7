"""Sampling of the next token: temperature, top-k, top-p, min-p and a seed.

Shape comments: R rows, C candidates per row.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import SearchOptions

LEAST = np.finfo(np.float64).min


def draw_uniforms(options: SearchOptions, sources: int, length: int) -> Doubles:
    """Return uniform random numbers in [0, 1) per sample of each source and new token: (sources x samples, length).

    With a seed, they depend only on the seed and the number of the sample within its source, not on the batch.
    """
    samples = options.nbest
    if options.seed is None:
        return np.random.default_rng().random((sources * samples, length))
    each = [np.random.default_rng([options.seed, sample]).random(length) for sample in range(samples)]
    return np.tile(each, (sources, 1))


def draw(values: Floats, options: SearchOptions, uniforms: Doubles) -> Ints:
    """Scores (R, C) in any order, uniform random numbers (R,) -> the index of the sampled candidate: (R,)."""
    scores = values.astype(np.float64)
    scores -= np.maximum(scores.max(axis=1, keepdims=True), LEAST)  # all may be -inf
    with np.errstate(over="ignore"):  # at low temperature, only the most probable remain
        weights = np.exp(scores / options.temperature)
    if options.top_p < 1:
        weights = nucleus(weights, options.top_p)
    if options.min_p:
        weights[weights < options.min_p] = 0  # the best has weight 1
    reached = np.cumsum(weights, axis=1)
    goal = uniforms[:, None] * reached[:, -1:]
    places: Ints = (reached > goal).argmax(axis=1)
    return places


def nucleus(weights: Doubles, share: float) -> Doubles:
    """Keep the fewest weights (R, C) whose sum is at least `share` of the total; set the others to 0.

    Weights below (1 - share) x total / C sum to at most 1 - share of the total, so they need not be sorted.
    """
    total = weights.sum(axis=1, keepdims=True)
    least = (1 - share) * total / weights.shape[1]
    count = max(1, int((weights > least).sum(axis=1).max()))
    ids = np.sort(np.argpartition(-weights, count - 1, axis=1)[:, :count], axis=1)  # equal weights in order of index
    ids = np.take_along_axis(ids, np.argsort(-np.take_along_axis(weights, ids, axis=1), axis=1, kind="stable"), axis=1)
    best = np.take_along_axis(weights, ids, axis=1)
    before = np.cumsum(best, axis=1) - best  # sum of all more probable ones
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, ids, np.where((before < share * total) & (best > least), best, 0), axis=1)
    return kept
