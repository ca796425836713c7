"""A model of each task in PyTorch: what an architecture defines, and the runs of it that are the reference.

An architecture's module says how hidden states come of tokens (`encoder_states`, `decoder_states`) and what comes of
those (`logits`, `outputs`), in terms of `Ops`, so that the same code is PyTorch's reference and every target's graph.
Sources are tokens (B, S) or features (B, M, F), of which an encoder makes S places.
Letters: B batch, S source length, T new target tokens, P past target tokens, D model size, V vocabulary, M numbers
of a frame, F frames.
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
    """What the decoder sees of the source: the encoder's output and which positions are real."""

    states: Tensor  # (B, S, D)
    mask: Tensor | None  # (B, S) bool, False on padding; None where there is none


class Decoded(NamedTuple):
    """What a run of the decoder gives."""

    logits: Tensor  # (B, T, V)
    state: State
    attention: Mapping[int, Tensor]  # over the source, by layer: (B, N, T, S)


class Stack(NamedTuple):
    """One side of a model: what makes its first hidden states, its layers, and the norm after the last one."""

    side: Side
    embedding: nn.Module
    layers: nn.ModuleList
    norm: nn.Module | None


class Model(nn.Module):
    """A model of an architecture, or a module with an adapter.

    `fp32_only` is why PyTorch can't run it in float64, if that is so.
    """

    fp32_only = ""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__()
        self.config = config
        self.facts = facts

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder's and the decoder's, those that there are; none of a module with an adapter."""
        return ()

    def stack_of(self, name: str) -> Stack | None:
        """The stack that a module belongs to; None for the whole model, and for what stands beside the stacks."""
        path = name.split(".") if name else []
        holders = [self.get_submodule(".".join(path[:depth])) for depth in range(1, len(path) + 1)]
        for stack in self.stacks:
            if any(each is holder for each in stack for holder in holders):
                return stack
        return None

    def encoder_states(self, source: Tensor, ops: Ops) -> Tensor:
        """What an encoder makes of sources: (..., D)."""
        raise NotImplementedError

    def decoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """What a decoder makes of tokens (B, T): (..., D), from which logits follow."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """What a decoder's states say of the next token: (..., D) -> (..., V)."""
        raise NotImplementedError

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """What an encoder-only model gives, in the order of `facts.outputs`."""
        raise NotImplementedError

    def cross_attention(self, layer: int) -> Attention:
        """The attention over the source of one decoder layer."""
        raise NotImplementedError

    def empty_state(self, rows: int) -> State:
        """The state before the first token: every length is 0."""
        like = next(self.parameters())
        return {each: like.new_zeros(each.shape(rows, 0)) for each in self.facts.state}

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Source tokens (B, S), right-padded, or features, and their lengths (B,) -> memory."""
        return self.encode_masked(source, padding_mask(lengths, source.shape[1]) if self.facts.masks_source else None)

    def encode_masked(self, source: Tensor, mask: Tensor | None) -> Memory:
        """As `encode`, from a mask (B, S) that is True on real tokens; None where all is real."""
        return Memory(self.encoder_states(source, self.encoder_ops(source, mask)), mask)

    def encoder_ops(self, source: Tensor, mask: Tensor | None) -> PlainOps:
        """A run over all places of sources at once."""
        length = source.shape[1] if self.facts.masks_source else self.facts.reads.longest
        places = torch.arange(length, device=source.device)
        return PlainOps(places, source_mask(mask, next(self.parameters()).dtype))

    def infer(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Tokens (B, S) and a mask (B, S) -> the outputs of an encoder-only model."""
        ops = self.encoder_ops(source, mask)
        return self.outputs(self.encoder_states(source, ops), ops)

    def decode(self, tokens: Tensor, memory: Memory, state: Mapping[StateTensor, Tensor]) -> Decoded:
        """The next T tokens (B, T) after the P in the state -> logits (B, T, V), and the state of P + T."""
        dtype = memory.states.dtype
        past = _past(state)
        places = torch.arange(past, past + tokens.shape[1], device=tokens.device)
        mask = additive(causal_mask(tokens.shape[1], past, tokens.device), dtype)
        ops = PlainOps(places, mask, state, memory.states, source_mask(memory.mask, dtype))
        logits = self.logits(self.decoder_states(tokens, ops))
        return Decoded(logits, ops.state, ops.weights)

    def extend(
        self, tokens: Tensor, mask: Tensor, places: Tensor, state: Mapping[StateTensor, Tensor], *, first: int = 0
    ) -> Decoded:
        """The next tokens (B, T) of a causal model, padded at the left, at positions (B, T), after the state's.

        `mask` (B, P + T) is True on real tokens. -> logits (B, T, V), or those from token `first` on, and the state of
        P + T. Padding sees itself: of nothing at all, what attention gives would be a matter of rounding.
        """
        past = _past(state)
        length = tokens.shape[1]
        hidden = before_mask(length, past, tokens.device) & ~mask[:, None, None, :]  # (B, 1, T, P + T)
        seen = causal_mask(length, past, tokens.device) & ~hidden
        ops = PlainOps(places, additive(seen, next(self.parameters()).dtype), state)
        states = self.decoder_states(tokens, ops)
        return Decoded(self.logits(states[:, first:] if first else states), ops.state, {})

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        """Teacher forcing, for training a seq2seq model: sources, (B,), (B, T) -> logits (B, T, V)."""
        memory = self.encode(source, lengths)
        return self.decode(tokens, memory, self.empty_state(tokens.shape[0])).logits

    def is_table(self, name: str) -> bool:
        """Whether a parameter holds a vector for each token or position."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return isinstance(owner, nn.Embedding | Embedding)

    def is_bias(self, name: str) -> bool:
        """Whether a parameter is the bias of a linear map, a convolution or a norm."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return getattr(owner, "bias", None) is self.get_parameter(name)

    def gain(self, name: str) -> float:
        """How many times as large as others a matrix begins: queries whose scores are scaled too little begin smaller.

        So they do in T5 (Raffel et al. 2020), which scales none. Else scores deviate by up to sqrt(H), and attention
        sees one key alone. Queries that a norm follows begin as others: it would undo their size.
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
        """Xavier uniform for matrices (Glorot and Bengio 2010), zero biases, embeddings of deviation 1/sqrt(D)."""
        for name, parameter in self.named_parameters():
            if self.is_table(name):
                nn.init.normal_(parameter, std=self.facts.width**-0.5)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter, self.gain(name))
            elif self.is_bias(name):
                nn.init.zeros_(parameter)


def _past(state: Mapping[StateTensor, Tensor]) -> int:
    """How many tokens of each row the state holds."""
    return next(tensor.shape[2] for each, tensor in state.items() if each.owner == "row")
