"""PyTorch on a GPU: eager, with caches that grow, or a compiled step over fixed caches, replayed as one CUDA graph.

In eager mode, the best tokens are chosen on the GPU, and the search is txport's. The compiled step reads nothing from
the host: it is replayed for each token, and only the complete target is copied to the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.engines.static import StaticDecoder
from benchmarks.peers.engines import Ids, Search, before_end
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import UnsupportedError
from txport.runtimes.base import Ints, Scores
from txport.runtimes.inputs import lengths_of
from txport.runtimes.pytorch import TorchRuntime, TorchState
from txport.search.generate import first_tokens, generate
from txport.search.options import SearchOptions

PACKAGES = ("torch", "numpy")
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class DeviceChoice(TorchRuntime):
    """Like `TorchRuntime`, but the best tokens of a seq2seq model are chosen on the device."""

    @torch.inference_mode()
    def step(
        self, tokens: Ints, state: TorchState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, TorchState]:
        """See `Runtime.step`."""
        if top is None or align or isinstance(state.memory, torch.Tensor):
            return super().step(tokens, state, top=top, normalise=normalise, align=align)
        found = self._model.decode(self._tensor(tokens)[:, None], state.memory, state.state)
        logits = found.logits[:, -1].float()
        values, ids = (logits.log_softmax(-1) if normalise else logits).topk(top)
        return Scores(values.cpu().numpy(), ids.cpu().numpy(), None), TorchState(state.memory, found.state)


class Engine:
    """PyTorch with the options `checkpoint`, `precision`, `device`, and `compile`, a backend of torch.compile or None.

    Raises `UnsupportedError` for a compiled step with beams.
    """

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32, as it does for txport
        model = load_checkpoint(options["checkpoint"]).in_memory().model
        self._model = model.to(options["device"], TYPES[options["precision"]]).eval()
        self._facts = model.facts
        self._search = search
        self._device = options["device"]
        self._compiled: StaticDecoder | None = None
        if options.get("compile"):
            if search.beams > 1:
                raise UnsupportedError("the compiled step is measured with greedy search")
            self._compiled = StaticDecoder(self._model, search.max_new_tokens, options["compile"])
        self._runtime = DeviceChoice(self._model, options["device"])
        length = search.max_new_tokens
        self._options = SearchOptions(
            beams=search.beams, max_new_tokens=length, min_new_tokens=length if search.forced else 0,
            scores=search.beams > 1,
        )  # fmt: skip

    def encode(self, sources: Ids) -> Ids:
        """Return the ids unchanged."""
        return sources

    def generate(self, inputs: Ids) -> Any:
        """Search one batch; return an array of tokens (B, T) if compiled, otherwise hypotheses."""
        if self._compiled is None:
            return generate(self._runtime, inputs, self._facts, self._options)
        source = np.asarray(inputs)
        return self._compiled.generate(source, lengths_of(source, self._facts), first_tokens(source, self._facts))

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best hypothesis of each source."""
        found = outputs.tolist() if isinstance(outputs, np.ndarray) else [each[0].tokens for each in outputs]
        return [before_end(tokens, self._facts.writes.end) for tokens in found]
