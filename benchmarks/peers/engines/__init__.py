"""One file for each engine, and what all of them have in common.

An engine's module has `prepare(model, folder)`, which puts the weights of a checkpoint into the engine's own
format, `PACKAGES`, whose versions are recorded, and a class `Engine`.
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
Sources = Ids | NDArray[np.float32]  # of tokens, or of features (B, M, F)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which weights, in which precision, and, where kernels are chosen by it, how many rows a step has."""

    checkpoint: str
    precision: str = "fp32"
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to search: greedy or with beams, for how many tokens, whether the end token may come before."""

    beams: int = 1
    max_new_tokens: int = 32
    forced: bool = True  # exactly `max_new_tokens` for every source


class Engine(Protocol):
    """A loaded model; only `generate` is timed."""

    def encode(self, sources: Sources) -> Any:
        """Token ids as the engine takes them."""
        ...

    def generate(self, inputs: Any) -> Any:
        """Search; what it finds stays in the engine's own form."""
        ...

    def decode(self, outputs: Any) -> list[list[int]]:
        """The best target of each source, in their order: token ids without the start and the end."""
        ...


class FirstEngine(Engine, Protocol):
    """One that can also stop at the first token, so that the tokens after it can be timed."""

    def first(self, inputs: Any) -> Any:
        """As `generate`, the first token alone."""
        ...


@runtime_checkable
class ScoringEngine(Engine, Protocol):
    """One that also says how likely given tokens are, which tells whether two engines hold the same model."""

    def score(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """The log-prob of each token of each target, after the source and the tokens before it."""
        ...


def begins(facts: Facts) -> list[int]:
    """What a target begins with after the start token: of speech in the checkpoint's language, without times."""
    from txport.models.audio.targets import prompt

    speech = facts.speech
    return [] if speech is None else prompt(speech, speech.language, speech.task or "transcribe", times=False)


def before_end(ids: Iterable[int], eos_id: int) -> list[int]:
    """What stands before the end token."""
    return [int(id_) for id_ in takewhile(lambda id_: id_ != eos_id, ids)]


# What CTranslate2 and Optimum have of the choices of a `TransformerConfig`.
PLAIN: dict[str, Any] = {
    "embedding_norm": False,
    "position_offset": 0,
    "bias": True,
    "output_bias": False,
    "output": "logits",
}


def require_plain(config: Any, wanted: Mapping[str, Any] = PLAIN) -> None:
    """Raise `UnsupportedError` for a config with choices that a peer has not."""
    wanted = {"head_size": config.d_model // config.heads, **wanted}
    if wrong := [name for name, value in wanted.items() if getattr(config, name) != value]:
        needs = ", ".join(f"{name} {wanted[name]}" for name in wrong)
        raise UnsupportedError(f"peers are measured on models with {needs}; this one has other choices")


def transformer(checkpoint: str) -> Transformer:
    """The model of a checkpoint; `UnsupportedError` for one that Optimum's format is not filled with here."""
    from txport.models.architectures.transformer import Transformer
    from txport.models.checkpoint import load_checkpoint

    model = load_checkpoint(checkpoint).in_memory().model
    if not isinstance(model, Transformer):
        raise UnsupportedError(f"Optimum is measured on the architecture transformer, {checkpoint} is of another")
    require_plain(model.config)
    return model
