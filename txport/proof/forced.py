"""Teacher forcing: the logits before every token of a given target, step by step on a runtime, at once in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport.models.checkpoint import Checkpoint
from txport.models.ports import LOGITS
from txport.models.transformer import Transformer
from txport.proof.cases import Case
from txport.proof.measures import FORCED, WHOLE, Comparison, compare
from txport.proof.tolerances import Tolerance
from txport.proof.walks import largest_difference, pad
from txport.runtimes.base import Runtime
from txport.search.scoring import say

Array = NDArray[Any]


def compare_forced(
    case: Case, label: str, runtime: Runtime, checkpoint: Checkpoint, tolerance: Tolerance
) -> Iterator[Comparison]:
    """Logits at each place of the case's targets, of all rows that are so long, the cache being the runtime's own.

    Where the RMS counts, it does over whole targets: at one place few numbers stand on all the errors before it. A
    place may then be worse, in its worst row, but not so much as where something is wrong, which is off by the size of
    the logits.
    """
    expected, pairs = one_pass(checkpoint.model, case.sources, case.targets), []
    own_error = cache(partial(_own_error, checkpoint.model, case, expected))
    for place, (rows, _, actual) in enumerate(say(runtime, case.sources, case.targets, checkpoint.config)):
        wanted = expected[rows, place]
        allowed, rms = tolerance.allowed(wanted), tolerance.allowed_place
        found = compare(case.name, label, place, LOGITS, wanted, actual, allowed, rms=rms, by_row=True, kind=FORCED)
        yield tolerance.judge(found, own_error)
        if tolerance.rms is not None:
            pairs.append((wanted, actual.copy()))
    if tolerance.rms is not None:
        wanted, actual = (np.concatenate(each) for each in zip(*pairs, strict=True))
        allowed, rms = tolerance.allowed(wanted), tolerance.allowed_rms
        yield compare(case.name, label, WHOLE, LOGITS, wanted, actual, allowed, rms=rms, kind=FORCED)


def _own_error(model: Transformer, case: Case, expected: Array) -> float:
    """How far PyTorch itself is off in fp16 at some place: at a single one, that is chance."""
    rounded = one_pass(copy.deepcopy(model).half(), case.sources, case.targets)
    said = [(row, slice(len(target))) for row, target in enumerate(case.targets)]
    return max(largest_difference(expected[row, places], rounded[row, places]) for row, places in said)


@torch.inference_mode()
def one_pass(model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Array:
    """What PyTorch says before each token of each target, in one pass: (B, T, V), of no meaning beyond a target."""
    config = model.config
    ids, lengths = pad(sources, config.pad_id)
    tokens, _ = pad([(config.bos_id, *target[:-1]) for target in targets], config.pad_id)
    logits: Array = model(*map(torch.from_numpy, (ids, lengths, tokens))).numpy()
    return logits
