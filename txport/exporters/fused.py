"""Modules of the cpu target: the reference model's parts around ONNX Runtime's fused attention operators.

Activations are (rows, D) between the operators, so that every linear map becomes one Gemm. In PyTorch itself
the attention functions compute what the operators do, which makes these modules their own reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from txport.bundles.ports import ENCODER, STEP, alignment_layer
from txport.errors import UnsupportedError
from txport.exporters.operators import FORMS
from txport.exporters.symbols import Form, Symbol, Tracer
from txport.models.config import TransformerConfig
from txport.models.transformer import (
    Attention,
    DecoderLayer,
    EncoderLayer,
    Transformer,
    additive,
    attend,
    attention_weights,
    padding_mask,
)

MICROSOFT = "com.microsoft"
HEAD_SIZE_STEP = 8  # GroupQueryAttention takes head sizes that are multiples of it
MASKED = -3e38  # MultiHeadAttention's own -10000 would let padding through where scores are large


def require_fusable(config: TransformerConfig) -> None:
    """Raise `UnsupportedError` for a model that the fused operators can't compute."""
    if config.head_size % HEAD_SIZE_STEP:
        sizes = f"this model's is {config.head_size} (d_model {config.d_model} / heads {config.heads})"
        need = f"a head size that is a multiple of {HEAD_SIZE_STEP}, {sizes}"
        raise UnsupportedError(f"the cpu target needs {need}; export --target portable")


class CpuEncoder(nn.Module):
    """input_ids, source_lengths -> the keys and values of the source for each decoder layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int32 -> two of (B, N, S, H) a layer."""
        model, batch, size = self.model, input_ids.shape[0], input_ids.shape[1]
        embedding = model.source_embedding
        x = embedding.tokens(input_ids.flatten()) * embedding.scale  # -> (B * S, D)
        x = (x.view(batch, size, -1) + F.embedding(torch.arange(size), embedding.positions)).flatten(0, 1)
        for layer in cast(Iterable[EncoderLayer], model.encoder):
            h = layer.attention_residual.before(x)
            own = layer.attention
            query, key, value = (part(h).view(batch, size, -1) for part in (own.query, own.key, own.value))
            mixed = multi_head_attention(query, key, value, source_lengths, own.heads)  # -> (B, S, D)
            x = layer.attention_residual.after(x, own.output(mixed.flatten(0, 1)))
            h = layer.feed_forward_residual.before(x)
            x = layer.feed_forward_residual.after(x, layer.feed_forward(h))
        memory = model.encoder_norm(x)  # (B * S, D)
        attentions = [layer.cross_attention for layer in cast(Iterable[DecoderLayer], model.decoder)]
        maps = (part for each in attentions for part in (each.key, each.value))
        return tuple(split_heads(part(memory).view(batch, size, -1), model.config.heads) for part in maps)


class CpuStep(nn.Module):
    """One token of every row: ids, lengths, the source's keys and values, and the rows' own -> logits.

    The rows' own keys and values lie in buffers of a fixed capacity M; the outputs are the same buffers
    with the new token's written at its place. Last comes the attention over the source, as plain operators.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, past_lengths: Tensor, cache_capacity: Tensor, source_lengths: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """(B, K), (B * K,), (1,), (B,), (B, N, S, H) twice a layer, then (B * K, N, M, H) twice a layer.

        -> logits (B * K, V), the caches, and the mean attention of the heads of the alignment layer (B * K, S).
        """
        model, layers = self.model, len(self.model.decoder)
        cross, own = caches[: 2 * layers], caches[2 * layers :]
        embedding = model.target_embedding
        x = embedding.tokens(input_ids.flatten()) * embedding.scale  # -> (B * K, D)
        x = x + F.embedding(past_lengths, embedding.positions)
        grown: list[Tensor] = []
        for number, layer in enumerate(cast(Iterable[DecoderLayer], model.decoder)):
            h = layer.attention_residual.before(x)
            key, value = own[2 * number : 2 * number + 2]
            h, key, value = self_attention(layer.attention, h, key, value, past_lengths, cache_capacity)
            grown += [key, value]
            x = layer.attention_residual.after(x, layer.attention.output(h))
            key, value = cross[2 * number : 2 * number + 2]
            query = self._query(layer, x, input_ids)
            if number == alignment_layer(model.config):
                attention = mean_attention(query, key, source_lengths)
            mixed = multi_head_attention(query, key, value, source_lengths, layer.cross_attention.heads)  # -> (B, K, D)
            x = layer.cross_attention_residual.after(x, layer.cross_attention.output(mixed.flatten(0, 1)))
            h = layer.feed_forward_residual.before(x)
            x = layer.feed_forward_residual.after(x, layer.feed_forward(h))
        return (model.projection(model.decoder_norm(x)), *grown, attention)

    @staticmethod
    def _query(layer: DecoderLayer, x: Tensor, input_ids: Tensor) -> Tensor:
        """(B * K, D) -> (B, K, D): the beams of one source are queries over its keys, held once for all of them."""
        h = layer.cross_attention.query(layer.cross_attention_residual.before(x))
        return h.view(*input_ids.shape, -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, S, D) -> (B, N, S, H)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def mean_attention(query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
    """Queries (B, K, D), keys (B, N, S, H), their lengths (B,) -> the mean attention of the heads (B * K, S)."""
    bias = additive(padding_mask(lengths, key.shape[2]), query.dtype)[:, None, None, :]  # -> (B, 1, 1, S)
    return attention_weights(split_heads(query, key.shape[1]), key, bias).mean(1).flatten(0, 1)


def multi_head_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Queries (B, T, D) over keys and values (B, S, D) or (B, N, S, H), of which `lengths` are real -> (B, T, D)."""
    if has_torch_function((query,)):
        mixed: Tensor = handle_torch_function(multi_head_attention, (query,), query, key, value, lengths, heads)
        return mixed
    key, value = (x if x.dim() == 4 else split_heads(x, heads) for x in (key, value))
    bias = additive(padding_mask(lengths, key.shape[2]), query.dtype)[:, None, None, :]  # -> (B, 1, 1, S)
    return attend(split_heads(query, heads), key, value, bias).transpose(1, 2).flatten(2)


def self_attention(
    attention: Attention, h: Tensor, key: Tensor, value: Tensor, past_lengths: Tensor, capacity: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One token (R, D) over the `past_lengths` before it and itself -> (R, D) and the two buffers (R, N, M, H)."""
    packed = torch.cat([attention.query(h), attention.key(h), attention.value(h)], 1)  # -> (R, 3 D)
    return grouped_query_attention(packed, key, value, past_lengths, capacity, attention.heads)


def grouped_query_attention(
    packed: Tensor, key: Tensor, value: Tensor, past_lengths: Tensor, capacity: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one token (R, 3 D) and buffers (R, N, M, H) -> (R, D), the buffers with the token's."""
    if has_torch_function((packed,)):
        arguments = (packed, key, value, past_lengths, capacity, heads)
        found: tuple[Tensor, Tensor, Tensor] = handle_torch_function(grouped_query_attention, (packed,), *arguments)
        return found
    new_query, new_key, new_value = (x.unflatten(1, (heads, -1)) for x in packed.chunk(3, 1))  # (R, N, H)
    rows, places = torch.arange(len(packed)), past_lengths.long()
    key, value = key.clone(), value.clone()
    key[rows, :, places], value[rows, :, places] = new_key, new_value
    bias = additive(padding_mask(past_lengths + 1, key.shape[2]), packed.dtype)[:, None, None, :]  # -> (R, 1, 1, M)
    return attend(new_query[:, :, None], key, value, bias).flatten(1), key, value


def _multi_head_attention(
    tracer: Tracer, query: Symbol, key: Symbol, value: Symbol, lengths: Symbol, heads: int
) -> Symbol:
    """As ONNX Runtime's operator; `MASKED` is where its own value would let padding through."""
    inputs = [query.value, key.value, value.value, None, lengths.value]
    how = {"num_heads": heads, "mask_filter_value": MASKED}
    mixed = tracer.op("multi_head_attention", "MultiHeadAttention", inputs, MICROSOFT, **how)
    return tracer.given(mixed, query.examples)


def _grouped_query_attention(
    tracer: Tracer, packed: Symbol, key: Symbol, value: Symbol, lengths: Symbol, capacity: Symbol, heads: int
) -> tuple[Symbol, Symbol, Symbol]:
    """As ONNX Runtime's operator, which takes (R, 1, 3 D) and writes into the buffers."""
    token = FORMS["unsqueeze"](tracer, packed, 1)
    inputs = [token.value, None, None, key.value, value.value, lengths.value, capacity.value]
    how = {"num_heads": heads, "kv_num_heads": heads}
    mixed, *grown = tracer.ops("grouped_query_attention", "GroupQueryAttention", inputs, 3, MICROSOFT, **how)
    size = packed.shape[1] // 3
    rows = [example.new_empty(len(example), 1, size) for example in packed.examples]
    attended = FORMS["view"](tracer, tracer.given(mixed, (rows[0], rows[1])), -1, size)  # -> (R, D)
    return attended, *(tracer.given(each, x.examples) for each, x in zip(grown, (key, value), strict=True))


FUSED_FORMS: dict[str, Form] = {
    **FORMS,
    "multi_head_attention": _multi_head_attention,
    "grouped_query_attention": _grouped_query_attention,
}
FUSED: dict[str, Callable[[Transformer], nn.Module]] = {ENCODER: CpuEncoder, STEP: CpuStep}
