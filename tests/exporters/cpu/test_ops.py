"""What an attention of the cpu target computes in PyTorch is what the reference computes, whatever it becomes."""

from __future__ import annotations

import pytest
import torch

from txport.exporters.cpu.ops import EncoderOps
from txport.exporters.fused.parts import PLAIN
from txport.models.ops import PlainOps, padding_mask
from txport.models.parts import Attention, DotProduct, RMSNorm, Rotary, SoftCap, additive, speeds

WIDTH, HEADS, SIZE = 32, 4, 8


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("norms", [(), ("key_norm",), ("query_norm",), ("query_norm", "key_norm")])
@torch.no_grad()
def test_an_encoder_becomes_an_operator_where_there_is_one(
    norms: tuple[str, ...], key_heads: int, cap: float | None, rotary: bool
) -> None:
    torch.manual_seed(0)
    core = DotProduct(HEADS, key_heads, SIZE**-0.5, cap=None if cap is None else SoftCap(cap))
    turned = Rotary(speeds(1e4, SIZE), 8, "halves") if rotary else None
    part = Attention(WIDTH, core, SIZE, rotary=turned, **{name: RMSNorm(SIZE, 1e-5) for name in norms}).double()
    for name in norms:
        part.get_parameter(f"{name}.weight").uniform_(0.5, 2)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    lengths = torch.tensor([5, 3], dtype=torch.int32)
    mask = additive(padding_mask(lengths, 5), x.dtype)[:, None, None, :]
    wanted = part(x, PlainOps(torch.arange(5), mask), 0)
    ops = EncoderOps(2, 5, lengths)
    found = part(x.flatten(0, 1), ops, 0).view(wanted.shape)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert bool(ops.became[PLAIN]) == (cap is not None), "MultiHeadAttention knows no cap"
