"""Graph modules of the cpu target: arguments and results are the traced ports, in the same order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from txport.exporters.cpu.ops import CausalOps, EncoderOps, StepOps
from txport.exporters.tracing.trace import GraphModule
from txport.models.facts import Task
from txport.models.model import Model
from txport.targets.ports import ENCODER, MODEL, STEP


class CpuEncoder(GraphModule):
    """input_ids or input_features, source_lengths -> cross-attention keys and values of each decoder layer."""

    def forward(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64 or (B, M, F), (B,) int32 -> two of (B, G, S, H) per layer."""
        facts = self.model.facts
        length = source.shape[1] if facts.masks_source else facts.reads.longest
        self.ops = ops = EncoderOps(source.shape[0], length, source_lengths)
        states = self.model.encoder_states(source, ops)  # (B * S, D)
        found = []
        for each in facts.owned("source"):
            part = self.model.cross_attention(each.layer)
            heads = part.keys(ops.whole(part.key(states)), None) if each.role == "key" else None
            found.append(part.split(ops.whole(part.value(states))) if heads is None else heads)
        return tuple(found)


class CpuModel(GraphModule):
    """input_ids, source_lengths -> the outputs of an encoder-only model."""

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int32 -> one tensor per output."""
        self.ops = ops = EncoderOps(input_ids.shape[0], input_ids.shape[1], source_lengths)
        return self.model.outputs(self.model.encoder_states(input_ids, ops), ops)


class CpuCausal(GraphModule):
    """Tokens of a causal model: right-padded prompts, the next part of one prompt, or one token of each row.

    They are written to the caches, which the outputs are. Tokens do not attend to later tokens, therefore padding needs
    no mask; its cache entries are overwritten later.
    """

    def forward(
        self, input_ids: Tensor, last_places: Tensor, total: Tensor, logits_at: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """(R, T) after P tokens, (R,) with P + T - 1, (1,) with P + T, (A,), two of (R, G, M, H) per layer.

        P is 0 if there are several rows with T > 1; if T is 1, `total` may be larger. Return logits (A, V) of the
        tokens at `logits_at`, which are places in R x T, and the caches.
        """
        state = dict(zip(self.model.facts.state, caches, strict=True))
        self.ops = ops = CausalOps(input_ids, last_places, total, logits_at, state)
        states = ops.asked(self.model.decoder_states(input_ids, ops))
        return (self.model.logits(states), *ops.state.values())


class CpuStep(GraphModule):
    """One token of each row: ids, lengths, cross-attention and self-attention keys and values -> logits, caches.

    Self-attention keys and values are in buffers of a fixed capacity M; the outputs are the same buffers with those of
    the new token written at its position. The last output is the cross-attention of the alignment layer, if any.
    """

    def forward(
        self,
        input_ids: Tensor,
        past_lengths: Tensor,
        cache_capacity: Tensor,
        source_lengths: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        """(B, K), (R,), (1,), (B,), two of (B, G, S, H) per layer, two of (R, G, M, H) per layer.

        Return logits (R, V), the caches, and the attention of the alignment layer, averaged over heads (R, S).
        """
        facts = self.model.facts
        state = dict(zip((*facts.owned("source"), *facts.owned("row")), caches, strict=True))
        aligned = facts.attention.layer if facts.attention else None
        self.ops = ops = StepOps(input_ids, past_lengths, cache_capacity, state, source_lengths, aligned)
        logits = self.model.logits(self.model.decoder_states(input_ids, ops))
        grown = [ops.state[each] for each in facts.owned("row")]
        return (logits, *grown) if ops.attention is None else (logits, *grown, ops.attention)


FUSED: dict[Task, dict[str, Callable[[Model], nn.Module]]] = {
    "seq2seq": {ENCODER: CpuEncoder, STEP: CpuStep},
    "causal": {STEP: CpuCausal},
    "encode": {MODEL: CpuModel},
}
