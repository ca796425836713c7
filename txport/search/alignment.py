"""Which places of the source the tokens of a target looked at, and how much of it was covered in the end.

Shape comments: T tokens, S places of the source, with padding.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import Alignment

UNSEEN = 1e-30  # attention that has come to nothing still has a logarithm


def alignment(looks: Floats, length: int, kind: str | None) -> Alignment:
    """Attention (T, S) over a source of some length -> all of it, or for each token where it looked most."""
    if kind is None:
        return ()
    own = looks[:, :length]
    return tuple(own.argmax(1).tolist()) if kind == "hard" else tuple(map(tuple, own.tolist()))


def fit(looks: Floats | None, places: int) -> Floats | None:
    """Attention (R, any) -> (R, S): other sources in the same state may be longer, or have left."""
    if looks is None or looks.shape[1] == places:
        return looks
    fitted = np.zeros((len(looks), places), np.float32)
    common = min(places, looks.shape[1])
    fitted[:, :common] = looks[:, :common]
    return fitted


def uncovered(looks: Doubles, lengths: Ints) -> Doubles:
    """The attention of all tokens together (N, K, S), sources' lengths (N,) -> (N, K), 0 if nothing was missed.

    Otherwise less: the sum of the logarithms of what was looked at less than once. Wu et al. 2016, "Google's neural
    machine translation system", section 7.
    """
    real = (np.arange(looks.shape[2]) < lengths[:, None])[:, None]  # (N, 1, S)
    missed: Doubles = np.where(real, np.log(np.clip(looks, UNSEEN, 1.0)), 0.0).sum(axis=2)
    return missed
