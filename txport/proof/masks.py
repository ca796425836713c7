"""Detection of masked logits: a model sets a logit to about -1e9 to exclude its token.

The tolerance of a tensor grows with its largest absolute value. With a mask in the tensor, the tolerance would be as
large as the model's real logits, and any error would pass. Masks are therefore cut off before a comparison.
"""

from __future__ import annotations

import numpy as np

from txport.system.arrays import Array

LEAST, GAP = 9e3, 100.0  # minimum size of a mask, and its minimum ratio to the largest real logit
ROOM = 2.0  # masks are cut off at ROOM x the largest real logit, so a missing mask still shows


def bound_of(logits: Array) -> float:
    """Return the absolute value at which masks are cut off; infinity if there are no masks."""
    sizes = np.abs(logits).ravel()
    if not sizes.max(initial=0.0) >= LEAST:
        return np.inf
    sizes = np.unique(sizes[np.isfinite(sizes) & (sizes > 0)])
    masks = np.flatnonzero((sizes[1:] >= LEAST) & (sizes[1:] / GAP >= sizes[:-1]))
    return ROOM * float(sizes[masks[0]]) if len(masks) else np.inf


def cut_off(logits: Array, bound: float) -> Array:
    """Return the logits, clipped to [-bound, bound]."""
    return logits if np.isinf(bound) else np.clip(logits, -bound, bound)


def largest_of(logits: Array) -> float:
    """Return the largest absolute value of the logits, masks excluded."""
    bound = bound_of(logits)
    return float(np.abs(logits).max(initial=0.0)) if np.isinf(bound) else bound / ROOM
