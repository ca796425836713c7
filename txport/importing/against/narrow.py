"""Find computations and tensors in float32 or less in models that run in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from txport.importing.against.watching import tensors_in

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Narrow(TorchFunctionMode):
    """Collect the names of functions whose inputs or outputs are rounded numbers of a narrow dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        found = function(*args, **(options or {}))
        name = getattr(function, "__name__", "")
        if name not in ("", "__get__") and name not in self.names:
            several = tensors_in((args, options or {}, found))
            if any(each.dtype in NARROW and is_rounded(each.detach()) for each in several):
                self.names[name] = None
        return found


@torch.no_grad()
def is_rounded(values: Tensor) -> bool:
    """Return whether values were rounded to float32: all are exact in float32, and some not in few digits."""
    values = values[torch.isfinite(values)].double()
    is_float32 = torch.equal(values.float().double(), values)
    return is_float32 and not bool(((values.bfloat16().double() == values) | (values == values.round())).all())


def rounded_tables(module: nn.Module, known: set[str]) -> Iterator[str]:
    """Yield the names of tensors that were rounded to float32, except `known` ones, which both models have."""
    for name, each in (*module.named_buffers(), *module.named_parameters()):
        if name not in known and each.is_floating_point() and is_rounded(each.detach()):
            yield name
