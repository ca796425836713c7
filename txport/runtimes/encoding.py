"""What models that only encode give for sources: each source its own outputs, as long as it is."""

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
    """The outputs of each source, in one batch; what each token has is as long as its source.

    Raises `RunError` where a number is NaN.
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
    """What an encoder-only graph gave for rows of `length` tokens, padded to `padded`, as `Runtime.infer` returns it.

    Raises `RunError` where an output has other dims than its port says.
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
