"""Drawing the next token from the scores of the model: temperature, top-k, top-p, min-p, and a seed.

Shape comments: R rows, C candidates a row.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import SearchOptions

LEAST = np.finfo(np.float64).min


def draw_uniforms(options: SearchOptions, sources: int, length: int) -> Doubles:
    """Random numbers in 0 to 1 for each sample of each source, one for every one of up to `length` new tokens.

    With a seed they are those of the seed and of which sample of its source a row is, whatever else is in the batch.
    """
    samples = options.nbest
    if options.seed is None:
        return np.random.default_rng().random((sources * samples, length))
    each = [np.random.default_rng([options.seed, sample]).random(length) for sample in range(samples)]
    return np.tile(each, (sources, 1))


def draw(values: Floats, options: SearchOptions, uniforms: Doubles) -> Ints:
    """Scores (R, C) in any order, and a number in 0 to 1 for each row -> the place that is drawn: (R,)."""
    scores = values.astype(np.float64)
    scores -= np.maximum(scores.max(axis=1, keepdims=True), LEAST)  # all may be -inf
    with np.errstate(over="ignore"):  # where it is cold, only the likeliest weigh anything
        weights = np.exp(scores / options.temperature)
    if options.top_p < 1:
        weights = nucleus(weights, options.top_p)
    if options.min_p:
        weights[weights < options.min_p] = 0  # the best weighs 1
    reached = np.cumsum(weights, axis=1)
    goal = uniforms[:, None] * reached[:, -1:]
    places: Ints = (reached > goal).argmax(axis=1)
    return places


def nucleus(weights: Doubles, share: float) -> Doubles:
    """Weights (R, C), of which only the fewest stay that are together at least such a share of all.

    The rest weighs at most 1 - share of all, and so does whatever weighs less than the mean of that: it needs no order.
    """
    total = weights.sum(axis=1, keepdims=True)
    least = (1 - share) * total / weights.shape[1]
    count = max(1, int((weights > least).sum(axis=1).max()))
    ids = np.sort(np.argpartition(-weights, count - 1, axis=1)[:, :count], axis=1)  # of equals, the first come first
    ids = np.take_along_axis(ids, np.argsort(-np.take_along_axis(weights, ids, axis=1), axis=1, kind="stable"), axis=1)
    best = np.take_along_axis(weights, ids, axis=1)
    before = np.cumsum(best, axis=1) - best  # of all that are likelier
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, ids, np.where((before < share * total) & (best > least), best, 0), axis=1)
    return kept
