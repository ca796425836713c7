"""Rules that turn the names of a checkpoint's tensors into those of a model, and tensors that are tied into one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txport.errors import quoted


@dataclass(frozen=True)
class Rename:
    """Every place of a name that matches a regular expression is replaced, as `re.sub` does."""

    pattern: str
    to: str


@dataclass(frozen=True)
class Drop:
    """A tensor whose name begins with this regular expression is no weight: a table that follows from the config."""

    pattern: str


Rule = Rename | Drop


def own_names(rules: Sequence[Rule], weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the model's names, each that is tied under its first name only.

    A name that is the model's own stays; to any other, the rules are applied in turn. What is none of the model's
    even then stands under the name that the checkpoint has for it. Raises `ValueError` for tensors that must be one,
    but differ.
    """
    if not rules:
        return dict(weights)
    first = {id(tensor): name for name, tensor in model.named_parameters()}
    own = {name: first[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}
    found: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for given, tensor in weights.items():
        renamed = given if given in own else apply(rules, given)
        if renamed is None:
            continue
        name = own.get(renamed, given)
        if name in found and not torch.equal(found[name], tensor):
            raise ValueError(f"{quoted(origin[name])} and {quoted(given)} must be one tensor, but differ")
        found[name], origin[name] = tensor, given
    return found


def apply(rules: Sequence[Rule], name: str) -> str | None:
    """What a name becomes, None if its tensor is dropped."""
    for rule in rules:
        if isinstance(rule, Drop):
            if re.match(rule.pattern, name):
                return None
        else:
            name = re.sub(rule.pattern, rule.to, name)
    return name
