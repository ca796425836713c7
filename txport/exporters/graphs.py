"""Modules of the portable target: their inputs and outputs are exactly its ports, in their order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from txport.bundles.ports import DECODER, ENCODER, alignment_layer
from txport.models.transformer import LayerCache, Memory, Transformer


class EncoderGraph(nn.Module):
    """input_ids, attention_mask -> last_hidden_state."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, S) int64 twice -> (B, S, D)."""
        return self.model.encode_masked(input_ids, attention_mask.bool()).states


class DecoderGraph(nn.Module):
    """input_ids, the encoder's output and mask, four cache tensors a layer -> logits, grown caches, and attention.

    The same graph serves the first step, with caches of length 0, and every later one.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """(B, T), (B, S, D), (B, S), then (B, N, past, H) each -> logits (B, T, V), the caches, and (B, N, T, S)."""
        memory = Memory(encoder_hidden_states, encoder_attention_mask.bool())
        cache = tuple(LayerCache(*past[start : start + 4]) for start in range(0, len(past), 4))
        logits, grown, attentions = self.model.decode(input_ids, memory, cache)
        attention = attentions[alignment_layer(self.model.config)]
        return (logits, *(tensor for layer in grown for tensor in layer), attention)


PORTABLE: dict[str, Callable[[Transformer], nn.Module]] = {ENCODER: EncoderGraph, DECODER: DecoderGraph}
