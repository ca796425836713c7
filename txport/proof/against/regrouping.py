"""Faults of an import: queries, keys and values read from the files in a wrong order or with a wrong layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import accumulate, permutations
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from txport.checkpoints.weights.streamed import outline
from txport.errors import ConfigError
from txport.models import architecture
from txport.models.config import Config
from txport.models.parts import Attention, unflatten
from txport.proof.against.beside import Beside
from txport.proof.against.pairing import Rows
from txport.proof.against.taps import IN, OUT
from txport.proof.bisect.calls import PartCall
from txport.proof.bisect.faults.attention import attend, attended
from txport.proof.bisect.faults.evidence import Cause
from txport.system.arrays import Array

Projected = dict[str, Tensor]  # queries, keys, values: (B, T, N x H)

MOST_SCORES = 1 << 25  # maximum number of scores of all heads
ROLES = ("query", "key", "value")
PLURAL = {"query": "queries", "key": "keys", "value": "values"}


def other_roles(evidence: Beside) -> Cause | None:
    """Queries, keys or values that are exchanged, split differently from one tensor, or permuted."""
    block = evidence.block
    assert block is not None
    part = block.part
    assert isinstance(part, Attention)
    own = {role: block.inner_calls(getattr(part, role))[0].result for role in ROLES}
    for what, changed in (*_exchanged(own), *_cut(evidence, part, own), *_unpermuted(evidence, own)):
        if evidence.explains(mixed_with(block, **changed)):
            return Cause("heads", what)
    return _other_columns(evidence)


def _other_columns(evidence: Beside) -> Cause | None:
    """An output projection of attention whose columns were permuted."""
    pair = evidence.tap.pair
    columns = pair.rows[0].inputs if pair is not None and len(pair.rows) == 1 else None
    if evidence.tap.key[2] != IN or columns is None or not evidence.matches(evidence.expected[..., columns.numpy()]):
        return None
    return Cause(
        "heads", "columns of its output projection stand in the order of the files: a rule permutes them, and must not"
    )


@torch.inference_mode()
def mixed_with(block: PartCall, **changed: Tensor) -> Array:
    """Return the output of the attention core with other queries, keys or values: (B x T, N x H)."""
    return attend(attended(block).replace(**_headed(block, block.part, changed)))


def _headed(block: PartCall, part: Any, projected: Projected) -> Projected:
    """Return projected queries, keys and values as the core of `part` reads them, at the positions of the call."""
    own: Any = block.part
    turned = block.inner_calls(own.rotary) if own.rotary is not None else []
    places = turned[0].arguments[1] if turned else None
    makes = {"query": part.queries, "key": part.keys}
    return {
        role: makes[role](values, places) if role in makes else part.split(values) for role, values in projected.items()
    }


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


def _rows(evidence: Beside, role: str) -> Rows | None:
    """Return the positions of a projection's rows in the tensor of the files; None if they are not in one tensor."""
    assert evidence.block is not None
    name = f"{evidence.block.name}.{role}"
    pair = next((tap.pair for tap in evidence.run.taps if tap.key == (name, 0, OUT)), None)
    if pair is not None and len(pair.rows) == 1:
        return pair.rows[0]
    shares = evidence.origins.shares(f"{name}.weight")
    return shares[0].rows(across=False) if len(shares) == 1 else None


def _cut(evidence: Beside, part: Attention, own: Projected) -> Iterator[tuple[str, Projected]]:
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


def _unpermuted(evidence: Beside, own: Projected) -> Iterator[tuple[str, Projected]]:
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


def other_number_of_heads(evidence: Beside) -> Cause | None:
    """Another number of heads, of another size: the shapes of the tensors don't determine it."""
    block = evidence.block
    assert block is not None
    part: Any = block.part
    own = {role: block.inner_calls(getattr(part, role))[0].result for role in ROLES}
    found: dict[str, Array] = {}
    given = attended(block)
    most = max(part.core.heads, MOST_SCORES // (len(given.query) * given.query.shape[2] * given.key.shape[2]))
    for config in _of_other_heads(evidence.model.config, part, most):
        other = _attention_of(config, block.name, part)
        if other is not None:
            found[f"there are {_counted(other, 'heads')}, the import has {_counted(part)}"] = _mixed_by(
                other, block, own
            )
    what = evidence.best(found)
    return None if what is None else Cause("heads", what)


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


@torch.inference_mode()
def _mixed_by(part: Attention, block: PartCall, own: Projected) -> Array:
    """Return the output of another attention's core for the same queries, keys and values: (B x T, N x H)."""
    return attend(attended(block).replace(core=part.core, **_headed(block, part, own)))


def _counted(part: Attention, noun: str = "") -> str:
    heads = part.core.heads
    key_heads = part.core.key_heads
    told = " ".join(filter(None, (str(heads), noun, f"of size {part.head_size}")))
    return told if heads == key_heads else f"{told} over {key_heads} of keys and values"
