"""Logits that are masks: -1e9 says that a token must not come, and nothing of how exact the other logits are.

What tensors may be off by grows with their largest value. A mask would make that as large as the model's own logits, so
that any of them passed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LEAST, GAP = 9e3, 100.0  # of a mask: its size, and how many times larger it is than the largest logit that is none
ROOM = 2.0  # a mask counts as so many times the largest other logit, so that one that is missing is seen


def bound_of(logits: Array) -> float:
    """The size at which masks are cut off; infinite where there are none."""
    sizes = np.abs(logits).ravel()
    if not sizes.max(initial=0.0) >= LEAST:
        return np.inf
    sizes = np.unique(sizes[np.isfinite(sizes) & (sizes > 0)])
    masks = np.flatnonzero((sizes[1:] >= LEAST) & (sizes[1:] / GAP >= sizes[:-1]))
    return ROOM * float(sizes[masks[0]]) if len(masks) else np.inf


def cut_off(logits: Array, bound: float) -> Array:
    """Logits with their masks cut off."""
    return logits if np.isinf(bound) else np.clip(logits, -bound, bound)


def largest_of(logits: Array) -> float:
    """The largest absolute value of those that are no masks."""
    bound = bound_of(logits)
    return float(np.abs(logits).max(initial=0.0)) if np.isinf(bound) else bound / ROOM
