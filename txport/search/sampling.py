"""Drawing the next token from what the model says: temperature, top-k, top-p, min-p, and a seed.

Shape comments: R rows, C candidates a row, best first.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import SearchOptions

IMPOSSIBLE = -1e30


def throw(options: SearchOptions, sources: int) -> Doubles:
    """Random numbers in 0 to 1 for each sample of each source, one for every token that it may have.

    With a seed they are those of the seed and of which sample of its source a row is, whatever else is in the batch.
    """
    samples, length = options.nbest, options.max_new_tokens
    if options.seed is None:
        return np.random.default_rng().random((sources * samples, length))
    each = [np.random.default_rng([options.seed, sample]).random(length) for sample in range(samples)]
    return np.tile(each, (sources, 1))


def draw(values: Floats, options: SearchOptions, chances: Doubles) -> Ints:
    """Scores (R, C) in falling order, and a number in 0 to 1 for each row -> the place that is drawn: (R,)."""
    scores = np.maximum(values.astype(np.float64), IMPOSSIBLE) / options.temperature  # all may be -inf
    if options.top_k:
        scores[:, options.top_k :] = -np.inf
    weights = np.exp(scores - scores[:, :1])
    before = np.cumsum(weights, axis=1) - weights  # of all that are likelier
    if options.top_p < 1:
        weights[before >= options.top_p * weights.sum(axis=1, keepdims=True)] = 0
    weights[weights < options.min_p] = 0  # the best weighs 1
    reached = np.cumsum(weights, axis=1)
    goal = chances[:, None] * reached[:, -1:]
    places: Ints = (reached > goal).argmax(axis=1)
    return places
