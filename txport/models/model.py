"""The base class of models in PyTorch: the methods that an architecture defines, and the reference runs.

An architecture defines how hidden states are computed from tokens (`encoder_states`, `decoder_states`), and how outputs
are computed from hidden states (`logits`, `outputs`). It uses `Ops`, so that the same code is PyTorch's reference and
every target's graph.
Sources are tokens (B, S) or features (B, M, F), which an encoder reduces to S positions.
Letters: B batch, S source length, T new target tokens, P past target tokens, D model size, V vocabulary, M size of a
frame, F frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from txport.models.config import Config
from txport.models.facts import Facts, StateTensor
from txport.models.ops import Ops, PlainOps, State, before_mask, causal_mask, padding_mask, source_mask
from txport.models.parts import Attention, DotProduct, Embedding, additive

Side = Literal["encoder", "decoder"]


class Memory(NamedTuple):
    """Input of cross-attention: the encoder's output for U sources and the mask of real tokens.

    `rows` are the sources of the B rows; None: each row has its own. The tensors of a state that belong to the source
    have U rows then.
    """

    states: Tensor  # (U, S, D)
    mask: Tensor | None  # (U, S) bool, False on padding; None: no padding
    rows: Tensor | None = None  # (B,) int64


class Decoded(NamedTuple):
    """Outputs of a run of the decoder."""

    logits: Tensor  # (B, T, V)
    state: State
    attention: Mapping[int, Tensor]  # cross-attention weights by layer: (B, N, T, S)


class Stack(NamedTuple):
    """The encoder or the decoder of a model: input embedding, layers, and the norm after the last layer."""

    side: Side
    embedding: nn.Module
    layers: nn.ModuleList
    norm: nn.Module | None


class Model(nn.Module):
    """A model of an architecture, or a module with an adapter.

    `fp32_only` is the reason why PyTorch can't run the model in float64; empty if it can.
    """

    fp32_only = ""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__()
        self.config = config
        self.facts = facts

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of the encoder and of the decoder, if they exist; empty for a module with an adapter."""
        return ()

    def stack_of(self, name: str) -> Stack | None:
        """Return the stack that a module belongs to; None for the model itself and for modules outside the stacks."""
        path = name.split(".") if name else []
        holders = [self.get_submodule(".".join(path[:depth])) for depth in range(1, len(path) + 1)]
        for stack in self.stacks:
            if any(each is holder for each in stack for holder in holders):
                return stack
        return None

    def encoder_states(self, source: Tensor, ops: Ops) -> Tensor:
        """Return the encoder's hidden states (..., D) for tokens (B, S) or features (B, M, F)."""
        raise NotImplementedError

    def decoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """Return the decoder's last hidden states (..., D) for tokens (B, T); `logits` projects them."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the next token for the decoder's hidden states: (..., D) -> (..., V)."""
        raise NotImplementedError

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """Return an encoder-only model's outputs for hidden states (..., D), in the order of `facts.outputs`."""
        raise NotImplementedError

    def cross_attention(self, layer: int) -> Attention:
        """Return the cross-attention of one decoder layer."""
        raise NotImplementedError

    def empty_state(self, rows: int) -> State:
        """Return the state before the first token: each tensor has length 0."""
        like = next(self.parameters())
        return {each: like.new_zeros(each.shape(rows, 0)) for each in self.facts.state}

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode source tokens (B, S), right-padded, or features (B, M, F), with lengths (B,)."""
        return self.encode_masked(source, padding_mask(lengths, source.shape[1]) if self.facts.masks_source else None)

    def encode_masked(self, source: Tensor, mask: Tensor | None) -> Memory:
        """Like `encode`, with a mask (B, S) that is True on real tokens; None: no padding."""
        return Memory(self.encoder_states(source, self.encoder_ops(source, mask)), mask)

    def encoder_ops(self, source: Tensor, mask: Tensor | None) -> PlainOps:
        """Return the `Ops` of a run over all positions of the sources at once."""
        length = source.shape[1] if self.facts.masks_source else self.facts.reads.longest
        places = torch.arange(length, device=source.device)
        return PlainOps(places, source_mask(mask, next(self.parameters()).dtype))

    def infer(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of an encoder-only model for tokens (B, S) and a mask (B, S), False on padding."""
        ops = self.encoder_ops(source, mask)
        return self.outputs(self.encoder_states(source, ops), ops)

    def decode(self, tokens: Tensor, memory: Memory, state: Mapping[StateTensor, Tensor]) -> Decoded:
        """Run T tokens (B, T) after the P tokens in the state; return logits (B, T, V) and the state of P + T."""
        dtype = memory.states.dtype
        past = _past(state)
        places = torch.arange(past, past + tokens.shape[1], device=tokens.device)
        mask = additive(causal_mask(tokens.shape[1], past, tokens.device), dtype)
        ops = PlainOps(places, mask, state, memory.states, source_mask(memory.mask, dtype), memory.rows)
        logits = self.logits(self.decoder_states(tokens, ops))
        return Decoded(logits, ops.state, ops.weights)

    def extend(
        self,
        tokens: Tensor,
        mask: Tensor,
        places: Tensor,
        state: Mapping[StateTensor, Tensor],
        *,
        wanted: Tensor | None = None,
    ) -> Decoded:
        """Run T tokens (B, T) of a causal model, left-padded, at positions `places` (B, T), after the P in the state.

        `mask` (B, P + T) is True on real tokens. Returns logits (B, N, V) of the tokens at the indices `wanted` (B, N),
        by default of all T, and the state of P + T. A padding token attends to itself: with all keys masked, rounding
        would decide the output.
        """
        past = _past(state)
        length = tokens.shape[1]
        hidden = before_mask(length, past, tokens.device) & ~mask[:, None, None, :]  # (B, 1, T, P + T)
        seen = causal_mask(length, past, tokens.device) & ~hidden
        ops = PlainOps(places, additive(seen, next(self.parameters()).dtype), state)
        states = self.decoder_states(tokens, ops)
        return Decoded(self.logits(picked(states, wanted)), ops.state, {})

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        """Teacher forcing of a seq2seq model: sources, lengths (B,), target tokens (B, T) -> logits (B, T, V)."""
        memory = self.encode(source, lengths)
        return self.decode(tokens, memory, self.empty_state(tokens.shape[0])).logits

    def is_table(self, name: str) -> bool:
        """Return True if a parameter is a vector or table of an embedding: of tokens, positions or a segment."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return isinstance(owner, nn.Embedding | Embedding)

    def is_bias(self, name: str) -> bool:
        """Return True if a parameter is the bias of a linear layer, a convolution or a norm."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return getattr(owner, "bias", None) is self.get_parameter(name)

    def gain(self, name: str) -> float:
        """Return the gain for initialising a matrix: below 1 for query projections whose scores are scaled too little.

        T5 (Raffel et al. 2020) does the same, because it does not scale scores. With gain 1, scores would have a
        standard deviation of up to sqrt(H), and softmax would select a single key. Queries with a norm have gain 1.
        """
        matrix, _, _ = name.rpartition(".")
        holder, _, _ = matrix.rpartition(".")
        attention = self.get_submodule(holder)
        if not isinstance(attention, Attention) or not isinstance(attention.core, DotProduct):
            return 1.0
        if self.get_submodule(matrix) is not attention.query:
            return 1.0
        usual = float(attention.head_size**-0.5)
        return 1.0 if attention.query_norm is not None else min(1.0, usual / attention.core.scale)

    def initialise(self) -> None:
        """Initialise weights: Xavier uniform (Glorot and Bengio 2010), zero biases, embeddings with std 1/sqrt(D)."""
        for name, parameter in self.named_parameters():
            if parameter.is_meta:  # it has no values, and looking it up takes long
                continue
            if self.is_table(name):
                nn.init.normal_(parameter, std=self.facts.width**-0.5)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter, self.gain(name))
            elif self.is_bias(name):
                nn.init.zeros_(parameter)


def picked(x: Tensor, wanted: Tensor | None) -> Tensor:
    """Return the tokens of x (B, T, D) at the indices `wanted` (B, N), as (B, N, D); all of them if it is None."""
    return x if wanted is None else x[torch.arange(len(x), device=x.device)[:, None], wanted]


def _past(state: Mapping[StateTensor, Tensor]) -> int:
    """Return the number of tokens of each row in the state."""
    return next(tensor.shape[2] for each, tensor in state.items() if each.owner == "row")
