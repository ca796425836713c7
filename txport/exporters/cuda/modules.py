"""The graphs of the cuda target as modules, whose arguments and results are exactly the ports."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txport.bundles.ports import ENCODER, MODEL, PREFILL, STEP
from txport.exporters.cuda.operators import likeliest
from txport.exporters.cuda.ops import EncoderOps, PromptOps, StepOps
from txport.exporters.cuda.places import by_source, wide
from txport.models.facts import Task
from txport.models.model import Model


class DeviceEncoder(nn.Module):
    """input_ids or input_features, source_lengths -> the keys and values of the source for each decoder layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64 or (B, M, F), (B,) int64 -> two of (B, S, G x H) a layer."""
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


class DeviceModel(nn.Module):
    """input_ids, source_lengths -> the outputs of an encoder-only model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int64 -> one tensor an output."""
        self.ops = ops = EncoderOps(input_ids, source_lengths, None)
        return tuple(map(wide, self.model.outputs(self.model.encoder_states(input_ids, ops), ops)))


class DevicePrefill(nn.Module):
    """Prompts of a causal model, padded at the right, or the next part of prompts, into the caches: the caches.

    No token sees what comes after it, so padding needs no mask; what it leaves in the caches is written over.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, past_lengths: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """(B, T) after (B,) others, as many in each row, and (B, M, G x H) twice a layer -> these."""
        self.ops = ops = PromptOps(input_ids, past_lengths, dict(zip(self.model.facts.state, caches, strict=True)))
        self.model.decoder_states(input_ids, ops)
        return tuple(ops.state.values())


class DeviceStep(nn.Module):
    """One token of every row -> the best tokens that may follow, all logits, and what the next step reads.

    The rows' own keys and values lie in buffers of a fixed capacity M; the outputs are the same buffers with the new
    token's written at its place. Last comes the attention over the source, if there is one.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, past_lengths: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(B, K), (R,), of a seq2seq model (B,) and (B, S, G x H) twice a layer, (R, M, G x H) twice a layer, (1,).

        -> log-probabilities and tokens (R, k), the best token of each row (B, K), logits (R, V), lengths (R,), the
        caches, and the mean attention of the heads of the alignment layer (R, S).
        """
        facts = self.model.facts
        (*caches, count) = rest
        source_lengths = caches.pop(0) if facts.task == "seq2seq" else None
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
