"""Faults of an import: queries, keys and values read from the files in a wrong order or with a wrong layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import accumulate, permutations
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.checkpoints.weights.streamed import outline
from txport.errors import ConfigError
from txport.models import architecture
from txport.models.config import Config
from txport.models.parts import Attention, unflatten
from txport.proof.against.evidence import ImportEvidence
from txport.proof.against.pairing import Rows
from txport.proof.against.taps import IN, OUT
from txport.proof.faults.attention import attend, attended
from txport.proof.faults.calls import PartCall
from txport.proof.faults.evidence import Cause, Hypothesis
from txport.system.arrays import Array

Projected = dict[str, Tensor]  # queries, keys, values: (B, T, N x H)

MOST_SCORES = 1 << 25  # maximum number of scores of all heads
ROLES = ("query", "key", "value")
TRANSPOSED = "the weight of its {} is transposed: it lies as (in, out) in the files"
PLURAL = {"query": "queries", "key": "keys", "value": "values"}


def other_roles(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """Queries, keys or values that are exchanged, split differently from one tensor, permuted or transposed."""
    block = evidence.part_call
    part = block.part
    assert isinstance(part, Attention)
    own = {role: block.inner_calls(getattr(part, role))[0].result for role in ROLES}
    for what, changed in (*_exchanged(own), *_cut(evidence, part, own), *_unpermuted(evidence, own)):
        yield Cause("heads", what), _mixed(block, changed)
    for role, values in _across(block, part):
        yield Cause("transposed", TRANSPOSED.format(role)), _mixed(block, {role: values})
    yield from _other_output(evidence, block, part)


@torch.inference_mode()
def _across(block: PartCall, part: Attention) -> list[tuple[str, Tensor]]:
    """Return queries, keys and values with a transposed weight, each with its role."""
    linear = {role: getattr(part, role) for role in ROLES}
    square = {role: each for role, each in linear.items() if each.weight.shape[0] == each.weight.shape[1]}
    reads = {role: block.inner_calls(each)[0].tensor for role, each in square.items()}
    return [(role, F.linear(reads[role], each.weight.t(), each.bias)) for role, each in square.items()]


@torch.inference_mode()
def _other_output(evidence: ImportEvidence, block: PartCall, part: Attention) -> list[Hypothesis]:
    """An output projection of attention whose columns were permuted, or whose matrix is transposed."""
    pair = evidence.tap.pair
    columns = pair.rows[0].inputs if pair is not None and len(pair.rows) == 1 else None
    if evidence.tap.key[2] == IN and columns is not None:
        what = "columns of its output projection stand in the order of the files: a rule permutes them, and must not"
        return [(Cause("heads", what), evidence.expected[..., columns.numpy()])]
    weight = part.output.weight
    if evidence.tap.key[2] == IN or weight.shape[0] != weight.shape[1]:
        return []
    mixed = F.linear(torch.from_numpy(_mixed(block, {})), weight.t(), part.output.bias)
    return [(Cause("transposed", TRANSPOSED.format("output")), mixed.numpy())]


@torch.inference_mode()
def _mixed(block: PartCall, projected: Projected, other: Attention | None = None) -> Array:
    """Return the output of the core of an attention, or of another one, with these projections: (B x T, N x H).

    They are at the positions of the call; projections that are left out are those of the call.
    """
    own: Any = block.part
    part: Any = other or own
    turned = block.inner_calls(own.rotary) if own.rotary is not None else []
    places = turned[0].arguments[1] if turned else None
    makes = {"query": lambda x: part.queries(x, places), "key": lambda x: part.keys(x, places), "value": part.split}
    heads = {role: makes[role](values) for role, values in projected.items()}
    return attend(attended(block).replace(core=part.core, **heads))


def _exchanged(own: Projected) -> Iterator[tuple[str, Projected]]:
    """Yield (description, projections) for each other order of projections of the same shape."""
    for order in permutations(ROLES):
        changed = {role: own[of] for role, of in zip(ROLES, order, strict=True) if role != of}
        if not changed or any(own[role].shape != each.shape for role, each in changed.items()):
            continue
        moved = [PLURAL[role] for role in changed]
        if len(moved) == 2:
            yield f"{' and '.join(moved)} are exchanged", changed
        else:
            told = ", ".join(f"{PLURAL[of]} as {PLURAL[role]}" for role, of in zip(ROLES, order, strict=True))
            yield f"queries, keys and values are exchanged: the import reads {told}", changed


def _rows(evidence: ImportEvidence, role: str) -> Rows | None:
    """Return the positions of a projection's rows in the tensor of the files; None if they are not in one tensor."""
    name = f"{evidence.part_call.name}.{role}"
    pair = next((tap.pair for tap in evidence.run.taps if tap.key == (name, 0, OUT)), None)
    if pair is not None and len(pair.rows) == 1:
        return pair.rows[0]
    shares = evidence.origins.shares(f"{name}.weight")
    return shares[0].rows(across=False) if len(shares) == 1 else None


def _cut(evidence: ImportEvidence, part: Attention, own: Projected) -> Iterator[tuple[str, Projected]]:
    """Yield (description, projections) for other ways to split a tensor that holds several projections."""
    rows = {role: found for role in ROLES if (found := _rows(evidence, role)) is not None}
    for file in dict.fromkeys(each.file for each in rows.values()):
        roles = [role for role in ROLES if role in rows and rows[role].file == file]
        whole = _whole({role: rows[role] for role in roles}, own)
        if len(roles) < 2 or whole is None:
            continue
        sizes = {role: own[role].shape[-1] for role in roles}
        for groups in dict.fromkeys((1, part.core.key_heads, part.core.heads)):
            if any(size % groups for size in sizes.values()):
                continue
            for order in permutations(roles):
                cut = dict(zip(order, _shares(whole, [sizes[role] for role in order], groups), strict=True))
                listed = ", ".join(PLURAL[role] for role in order)
                how = f"of each of {groups} heads its {listed}: split it with groups = {groups}"
                yield f"{file} holds {how if groups > 1 else f'{listed}, one after the other'}", cut
        if len(set(sizes.values())) == 1:
            for order in permutations(roles):
                beside = unflatten(whole, -1, (-1, len(order))).unbind(-1)
                what = f"{file} holds {', '.join(PLURAL[role] for role in order)} in turn, number by number"
                yield what, dict(zip(order, beside, strict=True))


def _whole(rows: Mapping[str, Rows], own: Projected) -> Tensor | None:
    """Return the complete output of a fused tensor (B, T, out), joined from its shares; None if a share is missing."""
    places = torch.cat([each.outputs for each in rows.values()])
    if not torch.equal(places.sort().values, torch.arange(len(places))):
        return None
    shapes = {tuple(own[role].shape[:-1]) for role in rows}
    if len(shapes) > 1:
        return None
    return torch.cat([own[role] for role in rows], -1)[..., places.argsort()]


def _shares(whole: Tensor, sizes: list[int], groups: int) -> list[Tensor]:
    """Split the output of a fused tensor: each group holds a share of each result."""
    grouped = unflatten(whole, -1, (groups, -1))
    cuts = list(accumulate(size // groups for size in sizes))[:-1]
    return [each.flatten(-2) for each in torch.tensor_split(grouped, cuts, -1)]


def _unpermuted(evidence: ImportEvidence, own: Projected) -> Iterator[tuple[str, Projected]]:
    """Yield (description, projections) with rows in the order of the files."""
    orders = {}
    for role in ROLES:
        rows = _rows(evidence, role)
        if rows is not None and not torch.equal(rows.outputs, rows.outputs.sort().values):
            orders[role] = rows.outputs.argsort()
    for some in ([role for role in ROLES if role in orders], *([role] for role in orders)):
        if some:
            changed = {role: own[role][..., orders[role]] for role in some}
            who = " and ".join(PLURAL[role] for role in some)
            yield f"rows of {who} stand in the order of the files: a rule permutes them, and must not", changed


def other_number_of_heads(evidence: ImportEvidence) -> Iterator[Hypothesis]:
    """Another number of heads, of another size: the shapes of the tensors don't determine it."""
    block = evidence.part_call
    part: Any = block.part
    own = {role: block.inner_calls(getattr(part, role))[0].result for role in ROLES}
    found: dict[str, Array] = {}
    given = attended(block)
    most = max(part.core.heads, MOST_SCORES // (len(given.query) * given.query.shape[2] * given.key.shape[2]))
    for config in _of_other_heads(evidence.model.config, part, most):
        other = _attention_of(config, block.name, part)
        if other is not None:
            what = f"in the original, there are {_counted(other, 'heads')}, the import has {_counted(part)}"
            found[what] = _mixed(block, own, other)
    yield from evidence.nearest("heads", found)


def _of_other_heads(config: Any, part: Any, most: int) -> Iterator[Config]:
    """Yield the config with each other head size for which all tensors keep their shapes, with up to `most` heads."""
    core = part.core
    size = part.head_size
    fields = {each.name for each in dataclasses.fields(config)}
    both = gcd(core.heads * size, core.key_heads * size)
    least = -(-core.heads * size // most)
    for other in (each for each in range(least, both + 1) if both % each == 0 and each != size):
        sizes = {"heads": core.heads * size // other, "key_heads": core.key_heads * size // other, "head_size": other}
        try:
            yield dataclasses.replace(config, **{name: each for name, each in sizes.items() if name in fields})
        except ConfigError:  # such as an odd size, whose pairs can't be rotated
            continue


def _attention_of(config: Config, name: str, like: Attention) -> Attention | None:
    """Return the attention of this name in a model of a config; None if its tensors depend on the number of heads."""
    part = outline(architecture.of(config).build, config).get_submodule(name)
    assert isinstance(part, Attention)
    one, other = ({each: tuple(tensor.shape) for each, tensor in both.named_parameters()} for both in (part, like))
    within = (each for each, child in part.named_modules() if not isinstance(child, nn.Linear))
    has_own = any(part.get_submodule(each)._parameters for each in within)
    return None if one != other or has_own else part.to(next(like.parameters()).dtype)


def _counted(part: Attention, noun: str = "") -> str:
    heads = part.core.heads
    key_heads = part.core.key_heads
    told = " ".join(filter(None, (str(heads), noun, f"of size {part.head_size}")))
    return told if heads == key_heads else f"{told} over {key_heads} of keys and values"
