"""A module whose file says how it is called: `run` is given a mask, so that padding is tried too."""

from __future__ import annotations

from torch import Tensor, nn

from tests.proof.against.originals import translator as translator
from tests.proof.against.originals import translator_post as translator_post


def run(module: nn.Module, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    found: Tensor = module(source, target, mask)
    return found
