"""Mixtures of experts: feed-forwards of which each token takes a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from txport.models.parts.linear import GatedFeedForward
from txport.models.parts.positions import unflatten

if TYPE_CHECKING:
    from txport.models.ops import Ops


def by_expert(rows: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    """Split rows (A, D) that are sorted by expert: E tensors (counts[e], D), of which some have no row."""
    if has_torch_function((rows, counts)):
        found: tuple[Tensor, ...] = handle_torch_function(by_expert, (rows, counts), rows, counts)
        return found
    return torch.split(rows, counts.tolist())


class Experts(nn.Module):
    """Mixture of experts (Shazeer et al. 2017): the sum of the `chosen` likeliest experts, times their probabilities.

    Probabilities are a softmax over all experts; with `normalised`, those of the chosen ones are divided by their sum:
    a softmax over the chosen ones. All tokens take the expert `shared`, if there is one, times a sigmoid of the input
    (Qwen Team 2024). The router, which has a `bias` or none, and this gate have no tag, so that they stay in fp32.

    An expert reads the rows of its tokens alone. One that no token takes has no rows, and its weights are not read.
    Where the length of a tensor can't depend on what others hold, all experts read all rows.
    """

    def __init__(
        self,
        width: int,
        expert: Callable[[], GatedFeedForward],
        count: int,
        chosen: int,
        *,
        normalised: bool,
        bias: bool = False,
        shared: GatedFeedForward | None = None,
    ) -> None:
        super().__init__()
        self.chosen = chosen
        self.normalised = normalised
        self.router = nn.Linear(width, count, bias=bias)
        self.experts = nn.ModuleList(expert() for _ in range(count))
        self.shared = shared
        self.shared_gate = nn.Linear(width, 1, bias=False) if shared else None

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (..., D)."""
        rows = x if x.dim() == 2 else x.flatten(0, 1)  # (R, D)
        shares, numbers = torch.softmax(self.router(rows), -1).topk(self.chosen)  # (R, K)
        if self.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        compute = self._of_own if ops.can_split else self._of_all
        mixed = compute(rows, shares, numbers, ops).reshape(x.shape)
        if self.shared is not None and self.shared_gate is not None:
            mixed = mixed + torch.sigmoid(self.shared_gate(x)) * self.shared(x, ops)
        return mixed

    def _of_own(self, rows: Tensor, shares: Tensor, numbers: Tensor, ops: Ops) -> Tensor:
        """Each expert for the rows of its tokens: rows (R, D), shares and numbers of experts (R, K) -> (R, D)."""
        taken = numbers.t().flatten()  # (K x R,): in this order, transformers gives an expert its rows
        order = taken.argsort(stable=True)
        places = torch.arange(rows.shape[0], device=rows.device).repeat(self.chosen).index_select(0, order)
        counts = F.one_hot(taken, len(self.experts)).sum(0)  # (E,)
        given = by_expert(rows.index_select(0, places), counts)
        made = torch.cat([expert(own, ops) for expert, own in zip(self.experts, given, strict=True)])
        mixed = unflatten(made.index_select(0, order.argsort()), 0, (self.chosen, -1)) * shares.t()[..., None]
        summed: Tensor = mixed.sum(0)
        return summed

    def _of_all(self, rows: Tensor, shares: Tensor, numbers: Tensor, ops: Ops) -> Tensor:
        """See `_of_own`; each expert for all rows."""
        kept = (F.one_hot(numbers, len(self.experts)) * shares[..., None]).sum(1)  # (R, E)
        made = [kept[:, at : at + 1] * expert(rows, ops) for at, expert in enumerate(self.experts)]
        return torch.stack(made).sum(0)
