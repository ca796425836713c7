"""Sources of a model as runtimes accept them, one array per batch; an encoder's outputs per source, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txport.errors import RunError
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.base import EncoderRuntime, Inputs, Ints, Outputs
from txport.system.arrays import Array
from txport.targets.ports import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS

PROMPT_PART = 128  # tokens per run; attention covers filled positions only, and its scores fit the processor's caches
SEVERAL = 2  # queries; products of at least so many sum in one order for each query, products of one in another

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


def text_inputs(ids: Ints, lengths: Ints, facts: Facts) -> dict[str, Ints]:
    """Return what the graph of an encoder-only model reads of texts (B, S) by port: ids, a mask, and types of tokens.

    `lengths` (B,) are the numbers of tokens that are not padding.
    """
    mask = (np.arange(ids.shape[1])[None, :] < lengths[:, None]).astype(np.int64)
    if not facts.has_token_types:
        return {INPUT_IDS: ids, ATTENTION_MASK: mask}
    types, tokens = np.divmod(ids, facts.vocabulary.size)
    return {INPUT_IDS: tokens, ATTENTION_MASK: mask, TOKEN_TYPE_IDS: types}


def lengths_of(sources: Sources | Inputs, facts: Facts) -> Ints:
    """Return the number of source positions that a decoder attends to, for each source (B,)."""
    if isinstance(facts.reads, Features):
        return np.full(len(sources), facts.reads.longest)
    return np.array([len(source) for source in sources], np.int64)


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


def outputs_of(facts: Facts, found: Mapping[str, Array], rows: int, length: int, padded: int) -> Outputs:
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


def left_padded(prompts: Inputs, lengths: Ints, pad: int) -> tuple[Ints, Ints]:
    """Return the first `lengths` tokens of right-padded prompts, so that all end together, and their mask: (R, T)."""
    size = int(lengths.max())
    places = np.arange(size)[None, :] - (size - lengths[:, None])
    mask = (places >= 0).astype(np.int64)
    return np.where(mask, np.take_along_axis(prompts, np.maximum(places, 0), axis=1), pad), mask


def parts_of_prompt(size: int, most: int) -> list[slice]:
    """Return the parts of a prompt of `size` tokens that run together, of `most` tokens each.

    No later part has a single token, because a product with one row sums in another order.
    """
    ends = list(range(most, size, most))
    if ends and size - ends[-1] < SEVERAL:
        ends[-1] -= SEVERAL - 1
    return [slice(first, end) for first, end in zip([0, *ends], [*ends, size], strict=True)]
