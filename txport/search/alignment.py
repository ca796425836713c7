"""Which places of the source the tokens of a target attended to, and how much of it was covered in the end.

Shape comments: T tokens, S places of the source, with padding.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import Alignment

UNSEEN = 1e-30  # attention that has come to nothing still has a logarithm


def alignment(attention: Floats, length: int, kind: str | None) -> Alignment:
    """Attention (T, S) over a source of some length -> all of it, or for each token where it is largest."""
    if kind is None:
        return ()
    own = attention[:, :length]
    return tuple(own.argmax(1).tolist()) if kind == "hard" else tuple(map(tuple, own.tolist()))


def fit(attention: Floats | None, places: int) -> Floats | None:
    """Attention (R, any) -> (R, S): other sources in the same state may be longer, or have left."""
    if attention is None or attention.shape[1] == places:
        return attention
    fitted = np.zeros((len(attention), places), np.float32)
    common = min(places, attention.shape[1])
    fitted[:, :common] = attention[:, :common]
    return fitted


def uncovered(attention: Doubles, lengths: Ints) -> Doubles:
    """The attention of all tokens together (N, K, S), sources' lengths (N,) -> (N, K), 0 if nothing was missed.

    Otherwise less: the sum of the logarithms of attention that is less than 1. Wu et al. 2016, "Google's neural
    machine translation system", section 7.
    """
    real = (np.arange(attention.shape[2]) < lengths[:, None])[:, None]  # (N, 1, S)
    missed: Doubles = np.where(real, np.log(np.clip(attention, UNSEEN, 1.0)), 0.0).sum(axis=2)
    return missed
