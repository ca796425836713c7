"""Copies of a model, in the same type or another one."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def copied(model: Module, dtype: torch.dtype | None = None) -> Module:
    """Return a copy of a model: `deepcopy(model).to(dtype)` without an intermediate copy in the model's type."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for each in (*module._parameters.values(), *module._buffers.values()):
            if each is not None and each.is_leaf and id(each) not in memo:
                memo[id(each)] = _converted(each, dtype)
        # Every module has a dozen of these. Copying them one by one would take most of the time for a small model.
        empty = (each for each in vars(module).values() if type(each) in (OrderedDict, set) and not each)
        memo |= {id(each): type(each)() for each in empty}
    return copy.deepcopy(model, memo)


def _converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    numbers = tensor.detach().to(dtype if dtype and tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(numbers, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
