"""PyTorch's results for parts of a graph: attention over caches, and rows of a table of positions.

Letters: N query heads, G key/value heads, H head size, T compared tokens, L all tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txport.models.facts import Role, StateTensor
from txport.models.ops import in_blocks
from txport.models.parts import Attention, DotProduct, additive
from txport.proof.context.cuts import KEY, OUTPUT, QUERY, VALUE
from txport.proof.context.places import Caches, Place

Array = NDArray[np.float32]
ROLES: tuple[Role, Role] = (KEY, VALUE)
Projected = Mapping[str, Tensor]  # queries, keys and values by role, as linear layers return them: (tokens, heads x H)


def may_pick(part: Attention) -> bool:
    """Return whether an attention can compute some queries alone: its mask and bias are the same for all of them."""
    core = part.core
    plain = isinstance(core, DotProduct) and core.heads == core.key_heads and not part.uses_distances
    return plain and part.window is None


def reaches_end(part: Attention) -> bool:
    """Return whether the longest source fits into memory: an attention picks queries, or is computed in blocks."""
    return may_pick(part) or in_blocks(part)


def numbers_of_pair(part: Attention) -> int:
    """Return how many numbers an attention computes for each pair of a query and a key."""
    core = part.core
    is_scalar = isinstance(core, DotProduct) and core.relative_keys is None and core.relative_values is None
    return core.heads if is_scalar else core.heads * part.head_size


def without_products(part: Attention, read: Callable[[str], Tensor], dtype: torch.dtype) -> Attention:
    """Return a copy of an attention in a dtype, without its linear layers; `read` returns its other weights by name."""
    memo = {id(part.get_submodule(role)): nn.Identity() for role in (QUERY, KEY, VALUE, OUTPUT)}
    copied = copy.deepcopy(part, memo)
    for module_name, module in copied.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = read(f"{module_name}.{name}".removeprefix("."))
            module._parameters[name] = nn.Parameter(values.detach().clone(), parameter.requires_grad)
    return copied.to(dtype)


class Keys:
    """Keys and values of a place in a dtype; layers write those of their new tokens over those of other layers."""

    def __init__(self, place: Place, caches: Caches, dtype: torch.dtype) -> None:
        self.caches = caches
        self.dtype = dtype
        self._place = place
        self._held: dict[Role, Tensor] = {}

    @torch.inference_mode()
    def of(self, part: Attention, states: Mapping[Role, StateTensor], given: Projected) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the tokens of a place may attend to: (1, G, L, H) each.

        `states` are the cached ones by role; none in a graph that reads whole sources.
        """
        place = self._place
        if part.over == "source" and states:
            key, value = (torch.from_numpy(self.caches.values(states[role])).to(self.dtype) for role in ROLES)
            return key, value
        new = {KEY: new_keys(part, place, given), VALUE: part.values(given[VALUE][None])}
        if not states:
            return new[KEY], new[VALUE]
        for role in ROLES:
            if role not in self._held:
                cached = torch.from_numpy(self.caches.values(states[role])[:, :, : place.size])
                self._held[role] = cached.to(self.dtype, copy=True)
            self._held[role][:, :, place.past :] = new[role]
        return self._held[KEY], self._held[VALUE]


@torch.inference_mode()
def new_keys(part: Attention, place: Place, given: Projected) -> Tensor:
    """Return the keys of the new tokens, normalised and rotated: (1, G, new, H)."""
    places = torch.arange(place.past, place.size)
    return part.keys(given[KEY][None], None if part.over == "source" else places)


@torch.inference_mode()
def attended(part: Attention, place: Place, given: Projected, keys: tuple[Tensor, Tensor]) -> Tensor:
    """Return the output of an attention for the compared tokens: (T, N x H)."""
    key, value = keys
    chosen = given[QUERY][None, place.picked]
    if part.over == "source" and not place.both_ways:
        over: Tensor = part.core(part.queries(chosen, None), key, value, None)[0]
        return over.transpose(1, 2).flatten(2)[0]
    places = torch.from_numpy(place.places)
    distances = torch.arange(place.size)[None, :] - places[:, None]  # (T, L)
    seen = torch.ones_like(distances, dtype=torch.bool) if place.both_ways else distances <= 0
    seen[:, place.hidden] = False
    mask = additive(seen, key.dtype)
    if part.window is not None:
        mask = part.window(mask, distances)
    far = part.distances(torch.arange(place.size)[None, :], places[:, None]) if part.uses_distances else None
    mixed: Tensor = part.core(part.queries(chosen, places), key, value, mask, far)[0]
    return mixed.transpose(1, 2).flatten(2)[0]
