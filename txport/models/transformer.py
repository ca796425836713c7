"""The reference encoder-decoder Transformer of Vaswani et al. 2017, "Attention is all you need".

Letters in shape comments: B batch, S source length, T new target tokens, P past target tokens,
N heads, H head size, D model size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.config import TransformerConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class Memory(NamedTuple):
    """What the decoder sees of the source: the encoder's output and which positions are real."""

    states: Tensor  # (B, S, D)
    mask: Tensor  # (B, S) bool, False on padding


class LayerCache(NamedTuple):
    """Keys and values that one decoder layer keeps between calls."""

    key: Tensor  # (B, N, P, H) of the target tokens so far
    value: Tensor  # (B, N, P, H)
    cross_key: Tensor  # (B, N, S, H) of the source, or length 0 before the first call
    cross_value: Tensor  # (B, N, S, H)


Cache = tuple[LayerCache, ...]
WAVES = (math.sin, math.cos)


class Decoded(NamedTuple):
    """What a call of the decoder gives."""

    logits: Tensor  # (B, T, V)
    cache: Cache
    attentions: tuple[Tensor, ...]  # where each token looked in the source, layer by layer: (B, N, T, S)


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    """True where a position lies within its row's length: (B,) -> (B, size)."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def causal_mask(length: int, past: int, device: torch.device) -> Tensor:
    """True where new token t may look at position s, its own and all before: -> (length, past + length)."""
    new = torch.arange(past, past + length, device=device)
    return torch.arange(past + length, device=device)[None, :] <= new[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is True, a large negative *finite* number elsewhere, to be added to scores."""
    return (~mask).to(dtype) * (torch.finfo(dtype).min / 2)


def attention_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """How much each query looks at each key: (B, N, T, H), (B, N, S, H), bias (..., T, S) -> (B, N, T, S)."""
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    return torch.softmax(scores + bias, dim=-1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Scaled dot-product attention: (B, N, T, H) over (B, N, S, H), bias (..., T, S) -> (B, N, T, H)."""
    return attention_weights(query, key, bias) @ value


class Linear(nn.Linear):
    """A linear map that knows what it is for: its `tag`."""

    def __init__(self, inputs: int, outputs: int, tag: str, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.tag = tag


class Attention(nn.Module):
    """Multi-head attention, its projections kept apart so that a cache can stand between them."""

    def __init__(self, config: TransformerConfig, key: str = "key", value: str = "value") -> None:
        """`key` and `value` are the tags of these two projections."""
        super().__init__()
        self.heads = config.heads
        self.query = Linear(config.d_model, config.d_model, "query")
        self.key = Linear(config.d_model, config.d_model, key)
        self.value = Linear(config.d_model, config.d_model, value)
        self.output = Linear(config.d_model, config.d_model, "attention_out")

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, N, T, H)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> two of (B, N, S, H)."""
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) over keys and values (B, N, S, H) -> (B, T, D), and where each token looked (B, N, T, S)."""
        weights = attention_weights(self.split(self.query(x)), key, bias)
        mixed = weights @ value  # (B, N, T, H)
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


class FeedForward(nn.Module):
    """Two position-wise linear maps with an activation between them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.inner = Linear(config.d_model, config.feed_forward, "ffn_in")
        self.outer = Linear(config.feed_forward, config.d_model, "ffn_out")

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.outer(self.activation(self.inner(x)))


class Residual(nn.Module):
    """The layer norm, dropout and residual around a sublayer, norm first ("pre") or last ("post")."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer sees."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, result: Tensor) -> Tensor:
        """What the next sublayer gets: the sublayer's input plus its result."""
        x = x + self.dropout(result)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention over the whole source, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        h = self.attention_residual.before(x)
        x = self.attention_residual.after(x, self.attention(h, *self.attention.keys_values(h), bias)[0])
        h = self.feed_forward_residual.before(x)
        return self.feed_forward_residual.after(x, self.feed_forward(h))


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, attention over the source, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_residual = Residual(config)
        self.cross_attention = Attention(config, "cross_key", "cross_value")
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, cache: LayerCache, bias: Tensor, memory_bias: Tensor
    ) -> tuple[Tensor, LayerCache, Tensor]:
        """(B, T, D) and the layer's cache -> (B, T, D), the cache grown by T, and where each token looked."""
        h = self.attention_residual.before(x)
        cache = self.extend(h, memory, cache)
        x = self.attention_residual.after(x, self.attention(h, cache.key, cache.value, bias)[0])
        h = self.cross_attention_residual.before(x)
        h, attention = self.cross_attention(h, cache.cross_key, cache.cross_value, memory_bias)
        x = self.cross_attention_residual.after(x, h)
        h = self.feed_forward_residual.before(x)
        return self.feed_forward_residual.after(x, self.feed_forward(h)), cache, attention

    def extend(self, h: Tensor, memory: Tensor, cache: LayerCache) -> LayerCache:
        """Append the keys and values of the new tokens, and of whatever source is not cached yet."""
        key, value = self.attention.keys_values(h)
        rest = memory[:, cache.cross_key.shape[2] :]  # all of it in the first call, nothing later
        cross_key, cross_value = self.cross_attention.keys_values(rest)
        return LayerCache(
            torch.cat([cache.key, key], 2),
            torch.cat([cache.value, value], 2),
            torch.cat([cache.cross_key, cross_key], 2),
            torch.cat([cache.cross_value, cross_value], 2),
        )


@cache
def sinusoids(length: int, size: int) -> Tensor:
    """Section 3.5 of the paper, sine and cosine interleaved: -> (length, size).

    Not by PyTorch's kernels, which differ in the last bit from one instruction set to the next.
    """
    table = np.empty((length, size), np.float32)
    for place, row in enumerate(table):
        row[:] = [wave(place * 10000.0 ** (-even / size)) for even in range(0, size, 2) for wave in WAVES]
    return torch.from_numpy(table)


class Embedding(nn.Module):
    """Token embedding, scaled by sqrt(D) where the config says so, plus positions from `start` on."""

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.max_length, config.d_model))
        else:
            self.register_buffer("positions", sinusoids(config.max_length, config.d_model).clone(), persistent=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """(B, T) -> (B, T, D)."""
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        return self.dropout(self.tokens(tokens) * self.scale + F.embedding(places, self.positions))


class Transformer(nn.Module):
    """The whole model; `encode` once per source, `decode` once or token by token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = Embedding(config, config.source_vocab_size)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.encoder_norm = self.final_norm()
        self.target_embedding = Embedding(config, config.target_vocab_size)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.decoder_norm = self.final_norm()
        self.projection = Linear(config.d_model, config.target_vocab_size, "projection", bias=False)
        self.tie()
        self.initialise()

    def final_norm(self) -> nn.Module:
        """Pre-norm leaves a stack's output unnormalised, so one more norm ends it; post-norm needs none."""
        config = self.config
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def tie(self) -> None:
        """Let the projection and the embeddings be one tensor, as the config says."""
        if self.config.tied != "none":
            self.projection.weight = self.target_embedding.tokens.weight
        if self.config.tied == "all":
            self.source_embedding.tokens.weight = self.target_embedding.tokens.weight

    def initialise(self) -> None:
        """Xavier uniform for matrices (Glorot and Bengio 2010), zero biases, embeddings of deviation 1/sqrt(D)."""
        for name, parameter in self.named_parameters():
            if "embedding" in name:
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def empty_cache(self, batch: int) -> Cache:
        """The cache before the first token: every length is 0."""
        config, like = self.config, self.projection.weight
        nothing = like.new_zeros(batch, config.heads, 0, config.head_size)
        return tuple(LayerCache(nothing, nothing, nothing, nothing) for _ in self.decoder)

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Source tokens (B, S), right-padded, and their lengths (B,) -> memory."""
        return self.encode_masked(source, padding_mask(lengths, source.shape[1]))

    def encode_masked(self, source: Tensor, mask: Tensor) -> Memory:
        """As `encode`, from a mask (B, S) that is True on real tokens."""
        x = self.source_embedding(source)  # -> (B, S, D)
        bias = additive(mask, x.dtype)[:, None, None, :]  # -> (B, 1, 1, S)
        for layer in self.encoder:
            x = layer(x, bias)
        return Memory(self.encoder_norm(x), mask)

    def decode(self, tokens: Tensor, memory: Memory, cache: Cache) -> Decoded:
        """The next T tokens (B, T) after the P in the cache -> logits (B, T, V), and the cache of P + T."""
        past = cache[0].key.shape[2]
        x = self.target_embedding(tokens, past)  # -> (B, T, D)
        bias = additive(causal_mask(tokens.shape[1], past, tokens.device), x.dtype)  # (T, P + T)
        memory_bias = additive(memory.mask, x.dtype)[:, None, None, :]  # -> (B, 1, 1, S)
        grown, attentions = [], []
        for layer, kept in zip(self.decoder, cache, strict=True):
            x, kept, attention = layer(x, memory.states, kept, bias, memory_bias)
            grown.append(kept)
            attentions.append(attention)
        return Decoded(self.projection(self.decoder_norm(x)), tuple(grown), tuple(attentions))

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        """Teacher forcing, for training: (B, S), (B,), (B, T) -> logits (B, T, V)."""
        memory = self.encode(source, lengths)
        return self.decode(tokens, memory, self.empty_cache(tokens.shape[0])).logits
