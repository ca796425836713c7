"""Alignment of target tokens with source positions, and coverage of the source.

Shape comments: T tokens, S source positions, padding included.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import Alignment

UNSEEN = 1e-30  # minimum attention, so that its logarithm is finite


def alignment(attention: Floats, length: int, kind: str | None) -> Alignment:
    """Attention (T, S) over `length` source positions -> rows of it ("soft"), or the argmax per token ("hard")."""
    if kind is None:
        return ()
    own = attention[:, :length]
    return tuple(own.argmax(1).tolist()) if kind == "hard" else tuple(map(tuple, own.tolist()))


def fit(attention: Floats | None, places: int) -> Floats | None:
    """Cut or pad attention (R, any) -> (R, S): the width differs if other sources in the state are longer."""
    if attention is None or attention.shape[1] == places:
        return attention
    fitted = np.zeros((len(attention), places), np.float32)
    common = min(places, attention.shape[1])
    fitted[:, :common] = attention[:, :common]
    return fitted


def uncovered(attention: Doubles, lengths: Ints) -> Doubles:
    """Attention summed over tokens (N, K, S), source lengths (N,) -> coverage (N, K): sum(log(min(attention, 1))).

    It is 0 if each source position got attention of at least 1, otherwise negative. Wu et al. 2016, "Google's neural
    machine translation system", section 7.
    """
    real = (np.arange(attention.shape[2]) < lengths[:, None])[:, None]  # (N, 1, S)
    missed: Doubles = np.where(real, np.log(np.clip(attention, UNSEEN, 1.0)), 0.0).sum(axis=2)
    return missed
