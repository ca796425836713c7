"""Sources of a model in the form that runtimes accept: one array per batch, and the length of each source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.models.audio.facts import Features
from txport.models.facts import Facts
from txport.runtimes.base import Inputs, Ints

Source = Any  # token ids (S,), or features (M, F)
Sources = Sequence[Source]


def batch(sources: Sources, facts: Facts, padding: int = 0) -> tuple[Inputs, Ints]:
    """Return sources as one array, right-padded tokens (B, S) or features (B, M, F), and their lengths (B,).

    Tokens are padded to the longest source and `padding` positions more; features have no padding.
    """
    reads = facts.reads
    if isinstance(reads, Features):
        return np.stack([np.asarray(each, np.float32) for each in sources]), np.full(len(sources), reads.longest)
    lengths = np.array([len(source) for source in sources], np.int64)
    ids = np.full((len(sources), lengths.max() + padding), reads.pad, np.int64)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids, lengths


def lengths_of(sources: Sources | Inputs, facts: Facts) -> Ints:
    """Return the number of source positions that a decoder attends to, for each source (B,)."""
    if isinstance(facts.reads, Features):
        return np.full(len(sources), facts.reads.longest)
    return np.array([len(source) for source in sources], np.int64)


def drawn_features(reads: Features, number: int) -> NDArray[np.float32]:
    """Return pseudorandom features (M, F) in [-1, 1); `number` is the seed.

    They are computed with integers only, so they are the same on all machines.
    The mixing function is SplitMix64's (Steele et al. 2014, "Fast splittable pseudorandom number generators").
    """
    count = np.uint64(reads.size * reads.frames)
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(number) * count + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    centred = (mixed >> np.uint64(40)).astype(np.float32) - np.float32(1 << 23)  # 24 bits, which are exact in fp32
    found: NDArray[np.float32] = (centred / np.float32(1 << 23)).reshape(reads.size, reads.frames)
    return found
