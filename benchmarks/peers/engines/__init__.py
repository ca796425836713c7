"""The engines, one module each, and their shared code.

An engine's module has `prepare(model, folder)`, which converts the weights of a checkpoint to the engine's format,
`PACKAGES`, whose versions are recorded, and a class `Engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from txport.errors import UnsupportedError

if TYPE_CHECKING:
    from txport.models.architectures.transformer import Transformer
    from txport.models.facts import Facts

Ids = Sequence[Sequence[int]]
Sources = Ids | NDArray[np.float32]  # tokens, or features (B, M, F)


@dataclass(frozen=True, kw_only=True)
class Model:
    """The weights and their precision; `rows` is the number of rows of a step, if kernels are chosen by it."""

    checkpoint: str
    precision: str = "fp32"
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of search: greedy or beam search, the maximum length, and whether all targets have that length."""

    beams: int = 1
    max_new_tokens: int = 32
    forced: bool = True  # exactly `max_new_tokens` for every source


class Engine(Protocol):
    """A loaded model; only `generate` is timed."""

    def encode(self, sources: Sources) -> Any:
        """Return the inputs in the engine's format."""
        ...

    def generate(self, inputs: Any) -> Any:
        """Search; return the outputs in the engine's format."""
        ...

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best target of each source, in order: token ids without the start and end tokens."""
        ...


class FirstEngine(Engine, Protocol):
    """An engine that can also stop after the first token, so that the later tokens can be timed."""

    def first(self, inputs: Any) -> Any:
        """Like `generate`, but only the first token."""
        ...


@runtime_checkable
class ScoringEngine(Engine, Protocol):
    """An engine that can also score given tokens, which shows whether two engines have the same model."""

    def score(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-prob of each token of each target, given the source and the tokens before it."""
        ...


def begins(facts: Facts) -> list[int]:
    """Return the tokens of a speech model's target after the start token, without timestamps; [] for other models."""
    from txport.audio.targets import prompt

    speech = facts.speech
    return [] if speech is None else prompt(speech, speech.language, speech.task or "transcribe", times=False)


def before_end(ids: Iterable[int], eos_id: int) -> list[int]:
    """Return the ids before the end token."""
    return [int(id_) for id_ in takewhile(lambda id_: id_ != eos_id, ids)]


# The values of a `TransformerConfig` that CTranslate2 (with any `output_bias`) and Optimum support.
PLAIN: Mapping[str, Any] = {
    "embedding_norm": False,
    "position_offset": 0,
    "bias": True,
    "output_bias": False,
    "output": "logits",
}


def require_plain(config: Any, wanted: Mapping[str, Any] = PLAIN) -> None:
    """Raise `UnsupportedError` for a config with values that a peer does not support."""
    wanted = {"head_size": config.d_model // config.heads, **wanted}
    if wrong := [name for name, value in wanted.items() if getattr(config, name) != value]:
        needs = ", ".join(f"{name} {wanted[name]}" for name in wrong)
        raise UnsupportedError(f"peers are measured on models with {needs}; this one has other choices")


def transformer(checkpoint: str) -> Transformer:
    """Return the model of a checkpoint; raise `UnsupportedError` if it can't be converted for Optimum here."""
    from txport.checkpoints.checkpoint import load_checkpoint
    from txport.models.architectures.transformer import Transformer

    model = load_checkpoint(checkpoint).in_memory().model
    if not isinstance(model, Transformer):
        raise UnsupportedError(f"Optimum is measured on the architecture transformer, {checkpoint} is of another")
    require_plain(model.config)
    return model
