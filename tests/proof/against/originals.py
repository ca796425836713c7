"""Modules as users write them, each of which one of our architectures can be: what an import is held against.

Each function without arguments makes one; tests save its weights with rules that are right, or with a fault in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, SIZE, HEADS, LAYERS, INNER, LONGEST = 40, 16, 4, 2, 24, 24
WINDOW = 16


def heads_of(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2).flatten(2)


class Across(nn.Module):
    """A linear map whose weight is (in, out)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Separate(nn.Module):
    def __init__(self, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(SIZE, SIZE) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.o(attend(*(heads_of(each(x)) for each in (self.q, self.k, self.v)), causal=True))
        return found


class Fused(nn.Module):
    """Queries, keys and values in one map: one after the other, or of each head its own."""

    def __init__(self, linear: Callable[[int, int], nn.Module], *, by_head: bool = False) -> None:
        super().__init__()
        self.qkv = linear(SIZE, 3 * SIZE)
        self.o = linear(SIZE, SIZE)
        self.by_head = by_head

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.qkv(x)
        if self.by_head:
            query, key, value = mixed.unflatten(-1, (HEADS, 3, -1)).transpose(1, 2).unbind(3)
        else:
            query, key, value = (heads_of(each) for each in mixed.chunk(3, -1))
        found: Tensor = self.o(attend(query, key, value, causal=True))
        return found


class Whole(nn.Module):
    """PyTorch's own, which calls no module for its maps."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        found: Tensor = self.mix(x, x, x, attn_mask=mask, need_weights=False)[0]
        return found


class Block(nn.Module):
    def __init__(self, attention: nn.Module, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(SIZE)
        self.attn = attention
        self.ln2 = nn.LayerNorm(SIZE)
        self.up = linear(SIZE, INNER)
        self.down = linear(INNER, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        found: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return found


class Gpt(nn.Module):
    def __init__(self, attention: Callable[[Any], nn.Module], linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.tok = nn.Embedding(WORDS, SIZE)
        self.pos = nn.Embedding(LONGEST, SIZE)
        self.blocks = nn.ModuleList(Block(attention(linear), linear) for _ in range(LAYERS))
        self.ln = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.ln(x))
        return found


def seeded(module: nn.Module) -> nn.Module:
    """With biases and norms that count."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return module


def gpt(
    seed: int,
    attention: Callable[[Any], nn.Module] = Separate,
    linear: Callable[[int, int], nn.Module] = nn.Linear,
    kind: Callable[..., Gpt] = Gpt,
    block: Callable[[], nn.Module] | None = None,
) -> nn.Module:
    """A model with these parts; its layers are of another `block` if that is given."""
    torch.manual_seed(seed)
    module = kind(attention, linear)
    if block is not None:
        module.blocks = nn.ModuleList(block() for _ in range(LAYERS))
    return seeded(module)


separate = partial(gpt, 1)
fused = partial(gpt, 2, Fused)
across = partial(gpt, 3, Fused, Across)
separate_across = partial(gpt, 4, Separate, Across)
by_head = partial(gpt, 5, partial(Fused, by_head=True))
whole = partial(gpt, 6, Whole)


class Activated(nn.Linear):
    """With its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x))


class Added(nn.LayerNorm):
    """Of a sum that it makes itself."""

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return super().forward(x + more)


class Divided(nn.Module):
    """A block whose work is divided otherwise among its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(SIZE)
        self.attn = Separate(nn.Linear)
        self.ln2 = Added(SIZE)
        self.up = Activated(SIZE, INNER)
        self.down = nn.Linear(INNER, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attn(self.ln1(x))
        found: Tensor = x + mixed + self.down(self.up(self.ln2(x, mixed)))
        return found


class Float32Only(Gpt):
    def forward(self, ids: Tensor) -> Tensor:
        assert self.tok.weight.dtype == torch.float32
        return super().forward(ids)


class Functional(Block):
    """Calls no module for its norms."""

    def norm(self, ln: nn.LayerNorm, x: Tensor) -> Tensor:
        return F.layer_norm(x, (SIZE,), ln.weight, ln.bias, 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(self.ln1, x))
        found: Tensor = x + self.down(F.gelu(self.up(self.norm(self.ln2, x))))
        return found


class FunctionalGpt(Gpt):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(F.layer_norm(x, (SIZE,), self.ln.weight, self.ln.bias, 1e-5))
        return found


functional = partial(gpt, 17, kind=FunctionalGpt, block=lambda: Functional(Separate(nn.Linear), nn.Linear))


class Inline(Block):
    """Calls no module for its linear layers."""

    factors = torch.ones(SIZE)  # of the mixed values

    def forward(self, x: Tensor) -> Tensor:
        def apply(linear: Any, x: Tensor) -> Tensor:
            return F.linear(x, linear.weight, linear.bias)

        read = self.ln1(x)
        own: Any = self.attn
        mixed = attend(*(heads_of(apply(each, read)) for each in (own.q, own.k, own.v)), causal=True)
        x = x + apply(own.o, mixed * self.factors)
        return x + apply(self.down, F.gelu(apply(self.up, self.ln2(x))))


def inline(scaled: int | None = None) -> nn.Module:
    """With one layer whose attention multiplies each number by another factor, if `scaled` is given."""
    module = gpt(21, block=lambda: Inline(Separate(nn.Linear), nn.Linear))
    if scaled is not None:
        module.blocks[scaled].factors = torch.arange(SIZE) / 9
    return module


inline_0 = partial(inline, 0)
inline_1 = partial(inline, 1)


class Flat(Block):
    """Its maps read all tokens in one dimension, the first of each row before the second of any."""

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        flat = x.transpose(0, 1).flatten(0, 1)  # (T * B, D)
        read = self.ln1(flat)
        parts = (each(read).unflatten(0, (length, rows)).transpose(0, 1) for each in self.maps())
        mixed = attend(*(heads_of(each) for each in parts), causal=True)
        flat = flat + self.attn.get_submodule("o")(mixed.transpose(0, 1).flatten(0, 1))
        flat = flat + self.down(F.gelu(self.up(self.ln2(flat))))
        found: Tensor = flat.unflatten(0, (length, rows)).transpose(0, 1)
        return found

    def maps(self) -> list[nn.Module]:
        return [self.attn.get_submodule(each) for each in "qkv"]


flat = partial(gpt, 18, block=lambda: Flat(Separate(nn.Linear), nn.Linear))
divided = partial(gpt, 12, block=Divided)
float32_only = partial(gpt, 13, partial(Fused, by_head=True), kind=Float32Only)


def tied() -> nn.Module:
    """Its file has one matrix under two names."""
    module = gpt(14)
    module.head.weight = module.tok.weight
    return module


class Unsteady(Gpt):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + torch.randn(())


def unsteady() -> nn.Module:
    return Unsteady(Separate, nn.Linear)


# ----------------------------------------------------------------------------------------- rotary, gated, RMS norms


class Rms(nn.Module):
    """Multiplies by 1 + weight, as Gemma's."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(SIZE))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def turned(x: Tensor, base: float, *, halves: bool) -> Tensor:
    """Heads (B, N, T, H) turned by their places."""
    size = x.shape[-1]
    angles = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(0, size, 2) / size)
    cos = angles.cos().to(x.dtype)
    sin = angles.sin().to(x.dtype)
    pairs = x.chunk(2, -1) if halves else x.unflatten(-1, (-1, 2)).unbind(-1)
    both = (pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin)
    return torch.cat(both, -1) if halves else torch.stack(both, -1).flatten(-2)


class Rotated(nn.Module):
    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.halves = halves

    def forward(self, x: Tensor) -> Tensor:
        query, key = (turned(heads_of(each(x)), 10000.0, halves=self.halves) for each in (self.q, self.k))
        found: Tensor = self.o(attend(query, key, heads_of(self.v(x)), causal=True))
        return found


class Grouped(Rotated):
    """Two heads of queries for each of keys and values."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__(halves=halves)
        self.k, self.v = (nn.Linear(SIZE, SIZE // 2, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        query = turned(heads_of(self.q(x)), 10000.0, halves=self.halves)
        key = turned(heads_of(self.k(x), HEADS // 2), 10000.0, halves=self.halves)
        key, value = (each.repeat_interleave(2, 1) for each in (key, heads_of(self.v(x), HEADS // 2)))
        found: Tensor = self.o(attend(query, key, value, causal=True))
        return found


class Gated(nn.Module):
    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.ln1 = Rms(1e-6)
        self.attn = Rotated(halves=halves)
        self.ln2 = Rms(1e-6)
        self.gate, self.up = (nn.Linear(SIZE, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        y = self.ln2(x)
        found: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return found


class Rotary(nn.Module):
    """Tied, and tokens are scaled by the root of their size."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.tok = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Gated(halves=halves) for _ in range(LAYERS))
        self.ln = Rms(1e-6)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.tok(ids) * math.sqrt(SIZE)
        for block in self.blocks:
            x = block(x)
        return {"loss": torch.zeros(()), "logits": F.linear(self.ln(x), self.tok.weight)}


class Windowed(Rotated):
    """Sees the last tokens only."""

    def forward(self, x: Tensor) -> Tensor:
        query, key = (turned(heads_of(each(x)), 10000.0, halves=True) for each in (self.q, self.k))
        places = torch.arange(x.shape[1])
        far = places[:, None] - places
        seen = (far >= 0) & (far < WINDOW)
        mixed = F.scaled_dot_product_attention(query, key, heads_of(self.v(x)), attn_mask=seen)
        found: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return found


def rotary(seed: int, attention: Callable[[], nn.Module] | None = None, **how: Any) -> nn.Module:
    torch.manual_seed(seed)
    module = Rotary(**how)
    for block in module.blocks if attention is not None else ():
        block.attn = attention()
    return module


windowed = partial(rotary, 15, partial(Windowed, halves=True), halves=True)
grouped = partial(rotary, 20, partial(Grouped, halves=True), halves=True)
halves = partial(rotary, 7, halves=True)
interleaved = partial(rotary, 8, halves=False)


class ShortRows(Rotary):
    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        if ids.shape[1] > LONGEST:
            raise IndexError("too many tokens")
        return super().forward(ids)


def short_rows() -> nn.Module:
    torch.manual_seed(16)
    return ShortRows(halves=True)


# ------------------------------------------------------------------------------------------------ a translation model


def sinusoids(length: int) -> Tensor:
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class Translator(nn.Module):
    """Of PyTorch's own layers, whose attentions call no module for their maps."""

    def __init__(self, *, first: bool, offset: int = 0) -> None:
        super().__init__()
        sizes: Any = {"batch_first": True, "norm_first": first, "activation": "relu", "dropout": 0.1}
        encoder = nn.TransformerEncoderLayer(SIZE, HEADS, INNER, **sizes)
        decoder = nn.TransformerDecoderLayer(SIZE, HEADS, INNER, **sizes)
        last = [nn.LayerNorm(SIZE) if first else None for _ in range(2)]
        self.words = nn.Embedding(WORDS, SIZE)
        self.offset = offset
        self.encoder = nn.TransformerEncoder(encoder, LAYERS, last[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, LAYERS, last[1])
        self.generator = nn.Linear(SIZE, WORDS)

    def embed(self, ids: Tensor) -> Tensor:
        table = sinusoids(LONGEST + self.offset).to(self.words.weight.dtype)
        found: Tensor = self.words(ids) * SIZE**0.5 + table[self.offset : self.offset + ids.shape[1]]
        return found

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = None if mask is None else ~mask
        memory = self.encoder(self.embed(source), src_key_padding_mask=hidden)
        seen = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=memory.dtype)
        x = self.decoder(self.embed(target), memory, tgt_mask=seen, memory_key_padding_mask=hidden)
        found: Tensor = self.generator(x)
        return found


def translator() -> nn.Module:
    torch.manual_seed(9)
    return seeded(Translator(first=True))


def translator_post() -> nn.Module:
    torch.manual_seed(10)
    return seeded(Translator(first=False))


def translator_barred() -> nn.Module:
    """Never gives padding: a large number is taken from its logit."""
    module = translator()
    with torch.no_grad():
        module.get_parameter("generator.bias")[0] = -1e9
    return module


class Barring(Gpt):
    """Never gives some tokens: their logits are replaced."""

    value = -1e9
    tokens = (0,)

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids).clone()
        logits[..., list(self.tokens)] = self.value
        return logits


class Infinite(Barring):
    value = -math.inf
    tokens = (0, 3)


class MostlyBarred(Barring):
    tokens = tuple(range(30))


barring = partial(gpt, 1, kind=Barring)
infinite = partial(gpt, 1, kind=Infinite)
mostly_barred = partial(gpt, 1, kind=MostlyBarred)


def translator_shifted() -> nn.Module:
    torch.manual_seed(11)
    return seeded(Translator(first=True, offset=1))
