"""Greedy search with a PyTorch decoder over caches of a fixed size, compiled, and captured on a GPU.

The code is that of a careful PyTorch user: caches are written in place, each attention is one call of scaled dot
product attention, and the host is not involved between tokens. It supports decoders with plain dot-product attention.
Letters: B sources, S source length, M capacity, N heads, H head size, D model size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from txport.errors import UnsupportedError
from txport.models.model import Memory, Model
from txport.models.ops import PlainOps
from txport.models.parts import Attention, DotProduct

WARM_UP = 3  # runs before a capture
Caches = dict[int, tuple[Tensor, Tensor]]  # layer -> keys and values (B, N, M, H)


class StaticOps(PlainOps):
    """One token per row at one position, over caches of a fixed size."""

    def __init__(self, place: Tensor, own: Caches, cross: Caches, own_mask: Tensor, cross_mask: Tensor | None) -> None:
        super().__init__(place, own_mask)
        self.place = place
        self.own = own
        self.cross = cross
        self.own_mask = own_mask
        self.cross_mask = cross_mask

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        query = part.split(part.query(x))
        if part.over == "source":
            key, value = self.cross[layer]
            mask = self.cross_mask
        else:
            key, value = self.own[layer]
            mask = self.own_mask
            key.index_copy_(2, self.place, part.split(part.key(x)))
            value.index_copy_(2, self.place, part.split(part.value(x)))
        assert isinstance(part.core, DotProduct)
        mixed = F.scaled_dot_product_attention(query, key, value, mask, scale=part.core.scale)
        return mixed.transpose(1, 2).flatten(2)


class StaticDecoder:
    """A seq2seq model that compiles, and captures on a GPU, one step for each shape of sources.

    Raises `UnsupportedError` for other models, and for relative positions.
    """

    def __init__(self, model: Model, tokens: int, backend: str) -> None:
        if model.facts.task != "seq2seq" or any(part.uses_distances for part in _attentions(model)):
            raise UnsupportedError("the compiled step is written for seq2seq models with plain attention")
        self._model = model
        self._tokens = tokens
        self._backend = backend
        self._known: dict[tuple[int, int], StaticStep] = {}

    @torch.inference_mode()
    def generate(self, source: NDArray[Any], lengths: NDArray[Any], first: NDArray[Any]) -> NDArray[np.int64]:
        """Generate from sources (B, S), lengths (B,) and first tokens (B,); return tokens (B, T)."""
        device = next(self._model.parameters()).device
        given, sizes, begin = (
            torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (source, lengths, first)
        )
        memory = self._model.encode(given, sizes)
        shape = (given.shape[0], given.shape[1])
        if shape not in self._known:
            self._known[shape] = StaticStep(self._model, memory, self._tokens, self._backend)
        return self._known[shape].generate(memory, begin)


class StaticStep:
    """One step over fixed memory, and the loop over steps."""

    def __init__(self, model: Model, memory: Memory, tokens: int, backend: str) -> None:
        self._model = model
        self._count = tokens
        like = memory.states
        rows = len(memory.states)
        self._own = self._empty(rows, tokens, like)
        self._cross = self._empty(rows, memory.states.shape[1], like)
        self._hidden = torch.zeros(rows, 1, 1, memory.states.shape[1], dtype=like.dtype, device=like.device)
        self._ids = torch.zeros(rows, 1, dtype=torch.int64, device=like.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=like.device)
        self._places = torch.arange(tokens, device=like.device)
        self._found = torch.zeros(rows, tokens, dtype=torch.int64, device=like.device)
        self._run: Callable[[], None] = torch.compile(self._step, backend=backend, fullgraph=True, dynamic=False)
        self._reset(memory, self._ids[:, 0].clone())
        for _ in range(WARM_UP):
            self._run()
            self._place.zero_()
        if like.is_cuda:
            self._run = self._captured()

    def _empty(self, rows: int, length: int, like: Tensor) -> Caches:
        found = {}
        for each in _layers(self._model):
            part = self._model.cross_attention(each)
            shape = (rows, part.core.heads, length, part.head_size)
            found[each] = (like.new_zeros(shape), like.new_zeros(shape))
        return found

    def _captured(self) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self._run()
        self._place.zero_()
        replay: Callable[[], None] = graph.replay
        return replay

    def _reset(self, memory: Memory, first: Tensor) -> None:
        """Start another batch of the same shape."""
        for layer, (key, value) in self._cross.items():
            part = self._model.cross_attention(layer)
            key.copy_(part.split(part.key(memory.states)))
            value.copy_(part.split(part.value(memory.states)))
        if memory.mask is not None:
            self._hidden.copy_(torch.where(memory.mask, 0.0, -torch.inf)[:, None, None])
        self._ids.copy_(first[:, None])
        self._place.zero_()

    def _step(self) -> None:
        hidden = torch.where(self._places <= self._place, 0.0, -torch.inf).to(self._hidden.dtype)[None, None, None]
        ops = StaticOps(self._place, self._own, self._cross, hidden, self._hidden)
        logits = self._model.logits(self._model.decoder_states(self._ids, ops))[:, -1]
        best = logits.argmax(-1, keepdim=True)
        self._found.index_copy_(1, self._place, best)
        self._ids.copy_(best)
        self._place.add_(1)

    def generate(self, memory: Memory, first: Tensor) -> NDArray[np.int64]:
        """Return complete targets (B, T); they are copied to the host at the end."""
        self._reset(memory, first)
        for _ in range(self._count):
            self._run()
        found: NDArray[np.int64] = self._found.cpu().numpy()
        return found.copy()


def _attentions(model: Model) -> list[Attention]:
    return [part for part in model.modules() if isinstance(part, Attention)]


def _layers(model: Model) -> list[int]:
    return list(dict.fromkeys(each.layer for each in model.facts.owned("source")))
