"""Faults of an import: tensors that were read wrongly from the files, and operations that only the original has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.facts import LOGITS
from txport.models.parts import Attention, Embedding, Layer, Residual, additive, sinusoids
from txport.proof.against.beside import Beside
from txport.proof.against.taps import BLOCK, IN, OUT
from txport.proof.against.watching import aligned
from txport.proof.bisect.calls import PartCall
from txport.proof.bisect.faults.attention import attend, attended
from txport.proof.bisect.faults.embeddings import position_rows
from txport.proof.bisect.faults.evidence import Cause, last_map
from txport.proof.bisect.words import name_of_sublayer
from txport.system.arrays import Array

NEAR = 1e-6  # maximum difference of equal values of the original, relative to the largest
NAMED = 5  # maximum number of masked tokens in a message
ORDER = "order"  # the kind of cause for a norm at another position
LAYOUTS = ("interleaved", "halves", "fairseq")
OFFSETS = (0, 1, 2, -1, -2)


def transposed(evidence: Beside) -> Cause | None:
    """A square matrix that is transposed, with or without its bias."""
    call = evidence.call
    assert call is not None
    part = call.part
    x = call.arguments[0]
    assert isinstance(part, nn.Linear)
    if part.weight.shape[0] != part.weight.shape[1] or x is None:
        return None
    ways = {"": part.bias, ", without its bias": None}
    for how, bias in ways.items():
        if evidence.explains(_linear(x, part.weight.t(), bias)):
            return Cause("transposed", f"its weight is transposed: it lies as (in, out) in the files{how}")
    return None


@torch.inference_mode()
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Array:
    found: Array = F.linear(x, weight, bias).numpy()
    return found


def lost_bias(evidence: Beside) -> Cause | None:
    """A bias that the original adds and the import does not use."""
    pair = evidence.tap.pair
    if pair is None or not pair.bias or len(pair.rows) != 1:
        return None
    outputs = pair.rows[0].outputs
    bias = evidence.origins.tensor(pair.bias)
    if not evidence.explains(evidence.expected + bias[outputs].double().numpy()):
        return None
    return Cause("bias", f"{pair.bias} of the files is added to it, and nothing of the import is made of that")


def unread(evidence: Beside) -> Cause | None:
    """A module of the original with tensors that the import does not use: its output is the value, or is added."""
    used = set(evidence.origins.used)
    for name, calls in evidence.run.watched.items():
        files = evidence.origins.unread(name)
        if not files or evidence.origins.files_under(name) & used:
            continue
        for result in (each.result for each in calls if each.result is not None):
            whole = aligned(result, evidence.tap.theirs)
            what = f"{', '.join(files)} of the files, of which nothing of the import is made"
            if whole is not None and evidence.matches(whole.double().numpy()):
                return Cause("tensor", f"it comes of {name} of the original, with {what}")
            if whole is not None and evidence.matches(evidence.expected + whole.double().numpy()):
                return Cause("tensor", f"{name} of the original is added, with {what}")
            if result.numel() < evidence.expected.size and result.shape[-1] == evidence.expected.shape[-1]:
                try:
                    more = np.broadcast_to(result.double().numpy(), evidence.expected.shape)
                except ValueError:
                    continue
                if evidence.matches(evidence.expected + more):
                    return Cause("tensor", f"{name} of the original is added, with {what}")
    return None


def other_order(evidence: Beside) -> Cause | None:
    """Norms before all sublayers of a layer in one model (pre-norm), and after their residuals in the other."""
    found = misplaced(evidence)
    return None if found is None else order_cause(is_first=found[1].first)


def order_cause(*, is_first: bool) -> Cause:
    """Return the cause for an import whose norms are before sublayers, if `is_first`, and else after residuals."""
    own, other = ("before it", "after the residual")[:: 1 if is_first else -1]
    return Cause(ORDER, f"the norm of each sublayer stands {other}, the import has it {own}")


def misplaced(evidence: Beside) -> tuple[str, Residual] | None:
    """Return the first residual of the layer, with its name, if the original has all norms at the other position."""
    name = evidence.tap.key[0]
    parts = name.split(".")
    found = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    layer = next((each for each in found if isinstance(evidence.model.get_submodule(each), Layer)), None)
    if layer is None:
        return None
    children = evidence.model.get_submodule(layer).named_children()
    around = [(f"{layer}.{attribute}", each) for attribute, each in children if isinstance(each, Residual)]
    is_other = [_placed(evidence, name) is (not each.first) for name, each in around]
    return around[0] if around and all(is_other) else None


def _placed(evidence: Beside, name: str) -> bool | None:
    """Return True if the original's norm is before a sublayer, False if after the residual, None if unknown."""
    sublayer = name_of_sublayer(evidence.model, name)
    last = last_map(evidence.model.get_submodule(sublayer))
    part = evidence.model.get_submodule(sublayer)
    own = {tap.key: tap.theirs for tap in evidence.run.taps}
    firsts = [own.get((f"{sublayer}{each}", 0, IN)) for each in (".query", ".gate", ".inner", "")]
    ends = [own.get((f"{sublayer}.{each}", 0, OUT)) for each, child in part.named_children() if child is last]
    ends.append(own.get((sublayer, 0, BLOCK)))
    read = own.get((f"{name}.norm", 0, IN))
    gave = own.get((f"{name}.norm", 0, OUT))
    first, end = (next((each for each in several if each is not None), None) for several in (firsts, ends))
    if read is None or gave is None or first is None:
        return None
    if _near(gave, first):
        return True
    return False if end is not None and _near(read, first + end) else None


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= NEAR * max(float(other.abs().max()), 1e-30))


def other_waves(evidence: Beside) -> Cause | None:
    """Sinusoids with another layout, or at shifted positions."""
    assert evidence.embedding is not None
    part = evidence.embedding.part
    assert isinstance(part, Embedding)
    if part.positions is None or isinstance(part.positions, nn.Parameter):
        return None
    own, _, tokens = list(position_rows(evidence)) or (None, None, None)
    if own is None or tokens is None:
        return None
    table = part.positions.double().numpy()
    places = np.square(own[:, None] - table[None]).sum(-1).argmin(-1)
    for layout in LAYOUTS:
        if layout == "fairseq" and table.shape[1] < 4:
            continue
        waves = sinusoids(len(table) + max(OFFSETS), table.shape[1], layout).double().numpy()
        for offset in OFFSETS:
            if (places + offset >= 0).all() and evidence.explains(tokens + waves[places + offset]):
                where = f", at positions that are off by {offset:+d}" if offset else ""
                return Cause("position", f"its sinusoids are those of the layout {layout!r}{where}")
    return None


def other_softmax(evidence: Beside) -> Cause | None:
    """Probabilities or log-probs instead of logits in the original, or log-probs instead of logits in the import."""
    ours = torch.from_numpy(evidence.expected)
    found = {"log-softmax": torch.log_softmax(ours, -1).numpy(), "softmax": torch.softmax(ours, -1).numpy()}
    what = evidence.best(found)
    if what is not None:
        return Cause("output", f"the original gives the {what} of what the import gives")
    theirs = torch.log_softmax(torch.from_numpy(evidence.seen), -1).numpy()
    gap = float(np.abs(theirs - evidence.expected).max(initial=0.0))
    if gap <= evidence.allowed:
        evidence.closest.append(gap)
        return Cause("output", "the original gives logits, the import their log-softmax")
    return None


def masked_tokens(evidence: Beside) -> Cause | None:
    """Suppressed tokens: the original sets their logits to a constant, and all other logits agree."""
    if evidence.tap.key[0] != LOGITS:
        return None
    theirs, ours = (each.reshape(-1, each.shape[-1]) for each in (evidence.seen, evidence.expected))
    constant = (theirs == theirs[:1]).all(0) & (len(theirs) > 1)
    is_mask = constant & (theirs[0] <= -evidence.tap.size) & (np.abs(ours - theirs).max(0) > evidence.allowed)
    left = evidence.left(np.where(is_mask, theirs, ours))
    if not is_mask.any() or is_mask.all() or left > evidence.allowed:
        return None
    evidence.closest.append(left)
    tokens = np.flatnonzero(is_mask)
    more = f" and {len(tokens) - NAMED} more" if len(tokens) > NAMED else ""
    who = f"token{'s' * (len(tokens) > 1)} {', '.join(map(str, tokens[:NAMED]))}{more}"
    values = " or ".join(f"{each:g}" for each in np.unique(theirs[0][is_mask])[:NAMED])
    what = f"the original masks the logits of {who} ({values})"
    return Cause("mask", f"{what}: leave that out of it, and give suppress_tokens")


def any_window(evidence: Beside) -> Cause | None:
    """Attention with a smaller window: its size is the position of the first query with a wrong value."""
    assert evidence.block is not None
    part = evidence.block.part
    given = attended(evidence.block)
    gap = np.abs(evidence.expected - evidence.seen)
    if getattr(part, "over", "row") == "source" or gap.ndim != 3:
        return None
    errs = np.flatnonzero(gap.max((0, 2)) > evidence.allowed)
    size = int(errs[0]) if len(errs) else 0
    if not size or not given.seen.any():
        return None
    places = torch.arange(given.seen.shape[-1])
    near = places > (places[-gap.shape[1] :, None] - size)
    if not evidence.explains(attend(given.replace(mask=additive(given.seen & near, given.mask.dtype)))):
        return None
    own = getattr(part, "window", None)
    return Cause(
        "window", f"it sees the last {size} tokens, the model's layer {f'the last {own.size}' if own else 'all'}"
    )


def inner_transposed(evidence: Beside) -> Cause | None:
    """A transposed square matrix in an attention whose linear layers are not separate calls in the original."""
    from txport.proof.against.regrouping import mixed_with

    block = evidence.block
    assert block is not None
    part = block.part
    assert isinstance(part, Attention)
    for role, values in _across(block, part):
        if evidence.explains(mixed_with(block, **{role: values})):
            return Cause("transposed", f"the weight of its {role} is transposed: it lies as (in, out) in the files")
    weight = part.output.weight
    if weight.shape[0] == weight.shape[1]:
        mixed = torch.from_numpy(mixed_with(block))
        if evidence.matches(_linear(mixed, weight.t(), part.output.bias)):
            return Cause("transposed", "the weight of its output is transposed: it lies as (in, out) in the files")
    return None


@torch.inference_mode()
def _across(block: PartCall, part: Attention) -> Iterator[tuple[str, Tensor]]:
    """Yield queries, keys and values with a transposed weight, each with its role."""
    for role in ("query", "key", "value"):
        linear = getattr(part, role)
        x = block.inner_calls(linear)[0].arguments[0]
        if linear.weight.shape[0] == linear.weight.shape[1] and x is not None:
            yield role, F.linear(x, linear.weight.t(), linear.bias)
