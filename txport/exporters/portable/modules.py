"""Graph modules of the portable target: inputs and outputs are its ports, in the same order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from txport.exporters.tracing.trace import GraphModule
from txport.models.facts import Task
from txport.models.model import Memory, Model
from txport.targets.ports import DECODER, ENCODER, MODEL


class EncoderGraph(GraphModule):
    """input_ids, attention_mask -> last_hidden_state; or input_features (without a mask) -> last_hidden_state."""

    def forward(self, source: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, S) and (B, S) int64, or (B, M, F) -> (B, S, D)."""
        return self.model.encode_masked(source, None if attention_mask is None else attention_mask.bool()).states


class DecoderGraph(GraphModule):
    """input_ids, encoder output, its mask, state -> logits, extended state, cross-attention weights.

    A model with audio features has no mask. The same graph runs all steps; the first has caches of length 0.
    """

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(B, T), (B, S, D), (B, S), caches (B, G, past, H) -> logits (B, T, V), caches, weights (B, N, T, S)."""
        facts = self.model.facts
        mask, past = (rest[0].bool(), rest[1:]) if facts.masks_source else (None, rest)
        memory = Memory(encoder_hidden_states, mask)
        logits, state, attention = self.model.decode(input_ids, memory, dict(zip(facts.state, past, strict=True)))
        shown = () if facts.attention is None else (attention[facts.attention.layer],)
        return (logits, *(state[each] for each in facts.state), *shown)


class CausalGraph(GraphModule):
    """input_ids, attention_mask, position_ids, state -> logits, extended state; rows are left-padded."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """(B, T), (B, P + T), (B, T), caches (B, G, P, H) -> logits (B, T, V), caches."""
        state = dict(zip(self.model.facts.state, past, strict=True))
        found = self.model.extend(input_ids, attention_mask.bool(), position_ids, state)
        return (found.logits, *found.state.values())


class EncodeGraph(GraphModule):
    """input_ids, attention_mask, of tokens with types token_type_ids -> the outputs of an encoder-only model."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, S) each, int64 -> one tensor per output."""
        ids = input_ids if token_type_ids is None else input_ids + token_type_ids * self.model.facts.vocabulary.size
        return self.model.infer(ids, attention_mask.bool())


PORTABLE: dict[Task, dict[str, Callable[[Model], nn.Module]]] = {
    "seq2seq": {ENCODER: EncoderGraph, DECODER: DecoderGraph},
    "causal": {DECODER: CausalGraph},
    "encode": {MODEL: EncodeGraph},
}
