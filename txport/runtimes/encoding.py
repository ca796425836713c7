"""Outputs of encoder-only models for each source, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.errors import RunError
from txport.models.facts import Facts
from txport.runtimes.base import EncoderRuntime, Outputs
from txport.runtimes.inputs import batch

FIX = "look for NaN or infinity in its weights, and at the size of its activations in this precision"


def infer(runtime: EncoderRuntime, sources: Sequence[Sequence[int]], facts: Facts) -> list[Outputs]:
    """Run sources (token ids) as one batch and return the outputs of each; outputs per token have its length.

    Raise `RunError` if an output has NaN.
    """
    ids, lengths = batch(sources, facts)
    found = runtime.infer(ids, lengths)
    if any(np.isnan(array).any() for array in found.values()):
        raise RunError(f"the model's outputs are NaN; {FIX}")
    return [
        {each.name: found[each.name][row, :length] if each.is_of_tokens else found[each.name][row]
         for each in facts.outputs}
        for row, length in enumerate(lengths)
    ]  # fmt: skip


def outputs_of(facts: Facts, found: Mapping[str, NDArray[Any]], rows: int, length: int, padded: int) -> Outputs:
    """Return the outputs of an encoder-only graph, as in `EncoderRuntime.infer`, without graph padding.

    `rows` is the number of rows. The graph ran with `padded` tokens per row; `length` of them are returned. Raise
    `RunError` if the shape of an output is wrong.
    """
    outputs: Outputs = {}
    for each in facts.outputs:
        array = found[each.name]
        wanted = each.shape(rows, padded)
        if array.shape != wanted:
            what = f"{each.name} of shape {array.shape}, expected {wanted}"
            raise RunError(f"the graph gives {what}; the bundle is damaged, and `txport verify` says where")
        outputs[each.name] = array[:, :length] if each.is_of_tokens else array
    return outputs
