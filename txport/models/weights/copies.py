"""Copies of a model, in its own type or another one."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def copied(model: Module, dtype: torch.dtype | None = None) -> Module:
    """A copy of a model, as `deepcopy(model).to(dtype)` gives it, without a copy in the model's own type on the way."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for each in (*module._parameters.values(), *module._buffers.values()):
            if each is not None and each.is_leaf and id(each) not in memo:
                memo[id(each)] = _converted(each, dtype)
        # Every module has a dozen of these, and copying them one by one takes most of the time of a small model's copy.
        empty = (each for each in vars(module).values() if type(each) in (OrderedDict, set) and not each)
        memo |= {id(each): type(each)() for each in empty}
    return copy.deepcopy(model, memo)


def _converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    numbers = tensor.detach().to(dtype if dtype and tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(numbers, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
