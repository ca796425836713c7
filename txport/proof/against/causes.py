"""Causes of a difference at a tap: faults of the import, then those that all parts may have.

Faults of an import are tensors that were read wrongly from the files, and operations that only the original has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.facts import LOGITS
from txport.models.parts import Attention, Embedding, Residual
from txport.proof.against.evidence import ImportEvidence
from txport.proof.against.heads import other_number_of_heads, other_roles
from txport.proof.against.pairing import files_read
from txport.proof.against.taps import aligned
from txport.proof.faults.evidence import INPUT, OUTPUT, Cause, Explained, Hypothesis, explain
from txport.proof.faults.kinds import FaultModels, faults_of

NAMED = 5  # maximum number of masked tokens in a message


def cause_of(evidence: ImportEvidence) -> Explained | None:
    """Return the cause by the first fault model that explains the original's value; None if none does."""
    evidence.read_weights()
    if (found := explain(evidence, faults_of(evidence.kind, FAULTS_OF_IMPORTS) or ())) is not None:
        return found
    found = explain(evidence, faults_of(evidence.kind) or ())
    return None if found is None else Explained(_of_original(found.cause), found.left)


def _of_original(cause: Cause) -> Cause:
    """Return the cause in words for imports: bisect describes a graph that differs from the model."""
    what = cause.what.replace("the model's", "the import's").replace("PyTorch has", "the import has")
    what = re.sub("what (it|they) should be", "the import's", what)
    return Cause(cause.kind, f"in the original, {what}")


@torch.inference_mode()
def transposed(evidence: ImportEvidence) -> list[Hypothesis]:
    """A square matrix that is transposed, with or without its bias."""
    part = evidence.part_call.part
    assert isinstance(part, nn.Linear)
    if part.weight.shape[0] != part.weight.shape[1]:
        return []
    what = "its weight is transposed: it lies as (in, out) in the files"
    product = F.linear(evidence.part_call.tensor, part.weight.t())
    bias: Tensor | None = part.bias
    if bias is None:
        return [(Cause("transposed", what), product.numpy())]
    found = {what: product + bias, f"{what}, without its bias": product}
    return list(evidence.nearest("transposed", found))


def lost_bias(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """A bias that the original adds and the import does not use."""
    pair = evidence.tap.pair
    if pair is not None and pair.bias and len(pair.rows) == 1:
        bias = evidence.origins.tensor(pair.bias)[pair.rows[0].outputs].double().numpy()
        what = f"{pair.bias} of the files is added to it, and nothing of the import is made of that"
        yield Cause("bias", what), evidence.expected + bias


def unread(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """A module of the original with tensors that the import does not use: its output is the value, or is added."""
    used = set(files_read(evidence.origins.plan))
    for name, calls in evidence.run.watched.items():
        files = evidence.origins.unread(name)
        if not files or evidence.origins.files_under(name) & used:
            continue
        what = f"{', '.join(files)} of the files, of which nothing of the import is made"
        for result in (each.result for each in calls):
            if (whole := aligned(result, evidence.tap.theirs)) is not None:
                yield Cause("tensor", f"it comes of {name} of the original, with {what}"), whole.double().numpy()
            for more in _as_large(result, evidence.tap.theirs):
                added = evidence.expected + more.double().numpy()
                yield Cause("tensor", f"{name} of the original is added, with {what}"), added


def _as_large(result: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Yield the result of a module in the shape of a value that it may be added to."""
    if (whole := aligned(result, like)) is not None:
        yield whole
    elif result.numel() < like.numel() and result.shape[-1:] == like.shape[-1:]:
        with contextlib.suppress(RuntimeError):  # of another shape
            yield result.broadcast_to(like.shape)


def other_softmax(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """Probabilities or log-probs instead of logits in the original, or log-probs instead of logits in the import."""
    ours = torch.from_numpy(evidence.expected)
    found = {"log-softmax": torch.log_softmax(ours, -1), "softmax": torch.softmax(ours, -1)}
    what = "the original gives the {} of what the import gives"
    yield from evidence.nearest("output", {what.format(name): each for name, each in found.items()})
    theirs = torch.log_softmax(torch.from_numpy(evidence.seen), -1).numpy()
    if np.abs(theirs - evidence.expected).max(initial=0.0) <= evidence.allowed:
        as_theirs = evidence.seen + (evidence.expected - theirs)
        yield Cause("output", "the original gives logits, the import their log-softmax"), as_theirs


def masked_tokens(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """Suppressed tokens: the original sets their logits to a constant, and all other logits agree."""
    if evidence.tap.key[0] != LOGITS:
        return
    theirs, ours = (each.reshape(-1, each.shape[-1]) for each in (evidence.seen, evidence.expected))
    constant = (theirs == theirs[:1]).all(0) & (len(theirs) > 1)
    is_mask = constant & (theirs[0] <= -evidence.tap.size) & (np.abs(ours - theirs).max(0) > evidence.allowed)
    masked = np.where(is_mask, theirs, ours)
    if not is_mask.any() or is_mask.all() or evidence.gap(masked) > evidence.allowed:
        return
    tokens = np.flatnonzero(is_mask)
    more = f" and {len(tokens) - NAMED} more" if len(tokens) > NAMED else ""
    who = f"token{'s' * (len(tokens) > 1)} {', '.join(map(str, tokens[:NAMED]))}{more}"
    values = " or ".join(f"{each:g}" for each in np.unique(theirs[0][is_mask])[:NAMED])
    what = f"the original masks the logits of {who} ({values})"
    yield Cause("mask", f"{what}: leave that out of it, and give suppress_tokens"), masked


FAULTS_OF_IMPORTS: Mapping[object, FaultModels] = {
    nn.Linear: (transposed, lost_bias),
    Embedding: (unread,),
    Attention: (other_roles, other_number_of_heads),
    Residual: (unread,),
    INPUT: (unread,),
    OUTPUT: (masked_tokens, unread, other_softmax),
}
