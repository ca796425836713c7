"""Run a checkpoint on PyTorch: the reference with which all other runtimes are compared."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import UnavailableError, UnsupportedError
from txport.models.model import Memory, Model
from txport.models.ops import State, padding_mask
from txport.runtimes.base import Inputs, Ints, Outputs, Scores, scores


class TorchState(NamedTuple):
    """The decoder's inputs other than tokens: the source, or for causal models the mask of tokens (R, P); the state."""

    memory: Memory | Tensor
    state: State


class TorchRuntime:
    """`Runtime` and `EncoderRuntime` of the reference model; scores are float64 for a float64 model, else float32."""

    def __init__(self, model: Model, device: str = "cpu") -> None:
        self._model = model
        self._device = torch.device(device)

    @torch.inference_mode()
    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> TorchState:
        """See `Runtime.start`."""
        state = self._model.empty_state(source.shape[0])
        if self._model.facts.is_causal:
            return self._prefill(source, source_lengths, state)
        return TorchState(self._model.encode(self._sources(source), self._tensor(source_lengths)), state)

    def _sources(self, source: Inputs) -> Tensor:
        """Return sources as a tensor, features in the dtype of the model."""
        tensor = self._tensor(source)
        return tensor.to(next(self._model.parameters()).dtype) if tensor.is_floating_point() else tensor

    def _prefill(self, prompts: Inputs, lengths: Ints, state: State) -> TorchState:
        """Run all but the last token of each prompt, left-padded."""
        size = int(lengths.max()) - 1
        places = np.arange(size)[None, :] - (size - (lengths - 1)[:, None])  # the position of each token in its prompt
        ids = np.take_along_axis(prompts, np.maximum(places, 0), axis=1)
        mask = self._tensor(places) >= 0
        if size:
            new, at = map(self._tensor, (ids, np.maximum(places, 0)))
            state = self._model.extend(new, mask, at, state, wanted=new[:, :0]).state
        return TorchState(mask, state)

    @torch.inference_mode()
    def step(
        self, tokens: Ints, state: TorchState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, TorchState]:
        """See `Runtime.step`."""
        model = self._model
        new = self._tensor(tokens)[:, None]
        if isinstance(state.memory, Tensor):
            mask = torch.cat([state.memory, state.memory.new_ones(len(new), 1)], 1)
            found = model.extend(new, mask, state.memory.sum(1, keepdim=True), state.state)
            memory: Memory | Tensor = mask
        else:
            found = model.decode(new, state.memory, state.state)
            memory = state.memory
        last = found.logits[:, -1].cpu()
        given = scores((last if last.dtype == torch.float64 else last.float()).numpy(), top, normalise)
        if align:
            assert model.facts.attention is not None
            mean = found.attention[model.facts.attention.layer][:, :, -1].mean(1)  # -> (R, S)
            given = given._replace(attention=mean.float().cpu().numpy())
        return given, TorchState(memory, found.state)

    @torch.inference_mode()
    def select(self, state: TorchState, rows: Ints) -> TorchState:
        """See `Runtime.select`."""
        index = self._tensor(rows)
        memory = state.memory
        if isinstance(memory, Tensor):
            kept: Memory | Tensor = memory[index]
        else:
            kept = memory._replace(rows=index if memory.rows is None else memory.rows[index])
        own = {each: tensor[index] if each.owner == "row" else tensor for each, tensor in state.state.items()}
        return TorchState(kept, own)

    @torch.inference_mode()
    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`; outputs are float32."""
        mask = padding_mask(self._tensor(source_lengths), source.shape[1])
        found = self._model.infer(self._tensor(source), mask)
        return {
            each.name: one.float().cpu().numpy() for each, one in zip(self._model.facts.outputs, found, strict=True)
        }

    def _tensor(self, array: Inputs) -> torch.Tensor:
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
    """Start a checkpoint on PyTorch; `provider` is `cpu` or `cuda`, and `threads` applies to the whole process."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32
    model = copy.deepcopy(checkpoint.in_memory().model).to(provider)
    return TorchRuntime(model.half() if precision == "fp16" else model, provider)
