"""PyTorch itself, from the checkpoint: the reference that every other runtime is held against."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch

from txport.bundles.ports import alignment_layer
from txport.errors import UnavailableError, UnsupportedError
from txport.models.checkpoint import Checkpoint
from txport.models.transformer import Cache, LayerCache, Memory, Transformer
from txport.runtimes.base import Ints, Scores, scores


class TorchState(NamedTuple):
    """The source as the decoder sees it, and the decoder's cache."""

    memory: Memory
    cache: Cache


class TorchRuntime:
    """`Runtime` over the reference model, on one device; a model in float64 says float64, any other float32."""

    def __init__(self, model: Transformer, device: str = "cpu") -> None:
        self._model, self._device = model, torch.device(device)

    @torch.inference_mode()
    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> TorchState:
        """See `Runtime.start`."""
        memory = self._model.encode(self._tensor(source), self._tensor(source_lengths))
        return TorchState(memory, self._model.empty_cache(source.shape[0]))

    @torch.inference_mode()
    def step(
        self, tokens: Ints, state: TorchState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, TorchState]:
        """See `Runtime.step`."""
        logits, cache, attentions = self._model.decode(self._tensor(tokens)[:, None], state.memory, state.cache)
        last = logits[:, -1].cpu()
        found = scores((last if last.dtype == torch.float64 else last.float()).numpy(), top, normalise)
        if align:
            attention = attentions[alignment_layer(self._model.config)][:, :, -1].mean(1)  # -> (R, S)
            found = found._replace(attention=attention.float().cpu().numpy())
        return found, TorchState(state.memory, cache)

    @torch.inference_mode()
    def select(self, state: TorchState, rows: Ints) -> TorchState:
        """See `Runtime.select`."""
        index = self._tensor(rows)
        memory = Memory(*(tensor[index] for tensor in state.memory))
        return TorchState(memory, tuple(LayerCache(*(tensor[index] for tensor in layer)) for layer in state.cache))

    def _tensor(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def require(provider: str) -> None:
    """See `runtimes.require`."""
    if provider not in ("cpu", "cuda"):
        raise UnsupportedError(f"the torch runtime runs on cpu or cuda, got provider {provider!r}")
    if provider == "cuda" and not torch.cuda.is_available():
        fix = "install a CUDA build of torch on a machine with an NVIDIA GPU and driver"
        raise UnavailableError(f"PyTorch {torch.__version__} sees no CUDA device; {fix}")


def load(
    checkpoint: Checkpoint, *, provider: str = "cpu", threads: int | None = None, precision: str = "fp32"
) -> TorchRuntime:
    """Start a checkpoint on PyTorch; `provider` is `cpu` or `cuda`, `threads` counts for the whole process."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    model = copy.deepcopy(checkpoint.model).to(provider)
    return TorchRuntime(model.half() if precision == "fp16" else model, provider)
