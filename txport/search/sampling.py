"""Sampling of the next token: temperature, top-h, top-k, top-p, min-p, typical-p, cutoffs and a seed.

Shape comments: R rows, C candidates per row.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import SearchOptions

LEAST = np.finfo(np.float64).min
MOST_OF_ENTROPY = 100  # maximum number of candidates of top-h


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
    weights = narrowed(weights, options)
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


def narrowed(weights: Doubles, options: SearchOptions) -> Doubles:
    """Set the weights (R, C) of the candidates that are not sampled to 0. The largest weight of a row is 1.

    With top-h, candidates are sorted, best first. Each rule applies to what the one before has left, in the order of
    transformers.
    """
    if options.top_h is not None:
        weights = within_entropy(weights, options.top_h)
        weights[:, options.top_k or weights.shape[1] :] = 0
    if options.top_p < 1:
        weights = nucleus(weights, options.top_p)
    if options.min_p:
        weights[weights < options.min_p] = 0
    if options.typical_p < 1:
        weights = typical(weights, options.typical_p)
    if options.epsilon_cutoff:
        weights = above(weights, options.epsilon_cutoff)
    if options.eta_cutoff:
        least = np.exp(-surprise(weights)[2]) * options.eta_cutoff**0.5
        weights = above(weights, np.minimum(options.eta_cutoff, least))
    return weights


def shares(weights: Doubles) -> Doubles:
    """Return the probabilities of weights (R, C); 0 in a row without allowed tokens."""
    total = weights.sum(axis=1, keepdims=True)
    probs: Doubles = weights / np.where(total > 0, total, 1)
    return probs


def surprise(weights: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Weights (R, C) -> probabilities p (R, C), -log(p) (R, C), and the entropy (R, 1)."""
    probs = shares(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprises = -np.log(probs)
        entropy = np.where(probs > 0, probs * surprises, 0).sum(axis=1, keepdims=True)
    return probs, surprises, entropy


def within_entropy(weights: Doubles, share: float) -> Doubles:
    """Keep the first weights (R, C) whose terms of the entropy sum to at most `share` of it, and at least one.

    Potraka et al. 2025, "Top-H decoding".
    """
    probs, surprises, entropy = surprise(weights)
    terms = probs * np.where(probs > 0, surprises, 0)
    kept = np.cumsum(terms, axis=1) <= share * entropy
    kept[:, 0] = True
    return np.where(kept, weights, 0)


def typical(weights: Doubles, mass: float) -> Doubles:
    """Keep the fewest weights (R, C) of a total probability >= `mass` whose -log(p) is closest to the entropy.

    Meister et al. 2022, "Locally typical sampling".
    """
    probs, surprises, entropy = surprise(weights)
    distances = np.abs(surprises - entropy)
    order = np.argsort(distances, axis=1, kind="stable")
    reached = np.cumsum(np.take_along_axis(probs, order, axis=1), axis=1)
    last = np.minimum((reached < mass).sum(axis=1, keepdims=True), weights.shape[1] - 1)
    farthest = np.take_along_axis(distances, np.take_along_axis(order, last, axis=1), axis=1)
    return np.where(distances <= farthest, weights, 0)


def above(weights: Doubles, least: Doubles | float) -> Doubles:
    """Keep the weights (R, C) with a probability of at least `least`, and the largest of each row.

    Hewitt et al. 2022, "Truncation sampling as language model desmoothing": epsilon and eta sampling.
    """
    return np.where((shares(weights) >= least) | (weights == weights.max(axis=1, keepdims=True)), weights, 0)
