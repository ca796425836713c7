"""Graph modules of the cuda target: arguments and results are the ports, in the same order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txport.exporters.cuda.operators import likeliest
from txport.exporters.cuda.ops import EncoderOps, PromptOps, StepOps
from txport.exporters.cuda.positions import by_source, wide
from txport.exporters.tracing.trace import GraphModule
from txport.models.facts import Task
from txport.models.model import Model
from txport.targets.ports import ENCODER, MODEL, PREFILL, STEP


class DeviceEncoder(GraphModule):
    """input_ids or input_features, source_lengths -> cross-attention keys and values of each decoder layer."""

    def forward(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64 or (B, M, F), (B,) int64 -> two of (B, S, G x H) per layer."""
        facts = self.model.facts
        if not facts.masks_source:
            source = source.to(next(self.model.parameters()).dtype)
        self.ops = ops = EncoderOps(source, source_lengths, None if facts.masks_source else facts.reads.longest)
        states = self.model.encoder_states(source, ops)
        found = []
        for each in facts.owned("source"):
            part = self.model.cross_attention(each.layer)
            is_key = each.role == "key"
            found.append(part.normalised(part.key(states), part.key_norm) if is_key else part.value(states))
        return tuple(found)


class DeviceModel(GraphModule):
    """input_ids, source_lengths -> the outputs of an encoder-only model."""

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int64 -> one tensor per output."""
        self.ops = ops = EncoderOps(input_ids, source_lengths, None)
        return tuple(map(wide, self.model.outputs(self.model.encoder_states(input_ids, ops), ops)))


class DevicePrefill(GraphModule):
    """Write right-padded prompts of a causal model, or the next part of prompts, to the caches; return the caches.

    Tokens do not attend to later tokens, therefore padding needs no mask; its cache entries are overwritten later.
    """

    def forward(self, input_ids: Tensor, past_lengths: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """(B, T), (B,) past lengths (equal in all rows), two of (B, M, G x H) per layer -> the caches."""
        self.ops = ops = PromptOps(input_ids, past_lengths, dict(zip(self.model.facts.state, caches, strict=True)))
        self.model.decoder_states(input_ids, ops)
        return tuple(ops.state.values())


class DeviceStep(GraphModule):
    """One token of each row -> the best next tokens, all logits, and the inputs of the next step.

    Self-attention keys and values are in buffers of a fixed capacity M; the outputs are the same buffers with those of
    the new token written at its position. The last output is the cross-attention of the alignment layer, if any.
    """

    def forward(self, input_ids: Tensor, past_lengths: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(B, K), (R,), for seq2seq (B,) and two of (B, S, G x H) per layer, two of (R, M, G x H) per layer, (1,).

        Return log-probabilities and tokens (R, k), the best token of each row (B, K), logits (R, V), lengths (R,), the
        caches, and the attention of the alignment layer, averaged over heads (R, S).
        """
        facts = self.model.facts
        (*caches, count) = rest
        source_lengths = caches.pop(0) if facts.is_encoder_decoder else None
        state = dict(zip((*facts.owned("source"), *facts.owned("row")), caches, strict=True))
        aligned = facts.attention.layer if facts.attention else None
        self.ops = ops = StepOps(input_ids, past_lengths, state, source_lengths, aligned)
        logits = wide(self.model.logits(self.model.decoder_states(input_ids, ops))).flatten(0, 1)
        best, ids = likeliest(torch.log_softmax(logits, -1), count)
        grown = [ops.state[each] for each in facts.owned("row")]
        found = (best, ids, by_source(ids[:, 0], ops.rows), logits, ops.lengths, *grown)
        return found if ops.weights is None else (*found, ops.weights)


DEVICE: dict[Task, dict[str, Callable[[Model], nn.Module]]] = {
    "seq2seq": {ENCODER: DeviceEncoder, STEP: DeviceStep},
    "causal": {PREFILL: DevicePrefill, STEP: DeviceStep},
    "encode": {MODEL: DeviceModel},
}
