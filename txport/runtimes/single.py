"""The driver of the single graph of a bundle, which contains the search, shared by all engines that can run it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from txport.bundles.manifest import Manifest
from txport.errors import RunError, UnsupportedError
from txport.runtimes.base import Floats, GraphPorts, Inputs, Ints, Scores, State
from txport.runtimes.portable import Engine
from txport.system.arrays import Array
from txport.targets.ports import (
    ATTENTION_MASK,
    GENERATE,
    INPUT_FEATURES,
    INPUT_IDS,
    LENGTH_PENALTY,
    MAX_NEW_TOKENS,
    NUM_BEAMS,
    PREFIX_IDS,
    SEQUENCES,
    SEQUENCES_LENGTHS,
    SEQUENCES_SCORES,
)

T = TypeVar("T")


class Targets(NamedTuple):
    """The hypotheses of each source, the best first.

    `ids` are tokens (B, K, T), `scores` (B, K) are -inf where there is no hypothesis, and `lengths` are (B, K).
    """

    ids: Ints
    scores: Floats
    lengths: Ints


class SingleRuntime(Generic[T]):
    """Runtime that computes targets from sources or prompts in one run. Its `Runtime` methods raise errors."""

    def __init__(self, engine: Engine[T], manifest: Manifest) -> None:
        self._engine = engine
        self._manifest = manifest
        self.facts = manifest.facts

    @property
    def defaults(self) -> dict[str, object]:
        """The generation options in the manifest: those built into the graph and the defaults of the others."""
        return self._manifest.generation

    def search(
        self,
        source: Inputs,
        lengths: Ints,
        prefixes: Ints,
        *,
        max_new_tokens: int,
        beams: int = 1,
        length_penalty: float = 1.0,
    ) -> Targets:
        """Sources, lengths (B,) as in `Runtime.start`, and prefixes (B, P) -> targets without their prefix.

        Raise `RunError` if the graph fails or if its outputs are not those of a search.
        """
        given: dict[str, Array] = {}
        if self.facts.is_causal or self.facts.masks_source:
            mask = np.arange(source.shape[1])[None, :] < lengths[:, None]
            given |= {INPUT_IDS: source, ATTENTION_MASK: mask.astype(np.int64)}
        else:
            given[INPUT_FEATURES] = np.ascontiguousarray(source, np.float32)
        if self.facts.is_encoder_decoder:
            given[PREFIX_IDS] = prefixes
        given |= {MAX_NEW_TOKENS: np.array([max_new_tokens]), NUM_BEAMS: np.array([beams])}
        given[LENGTH_PENALTY] = np.array([length_penalty], np.float32)
        tensors = {name: self._engine.from_numpy(array) for name, array in given.items()}
        names = [SEQUENCES, SEQUENCES_SCORES, SEQUENCES_LENGTHS]
        found = self._engine.run(GENERATE, tensors, names)
        ids, scores, sizes = (self._engine.to_numpy(found[name]) for name in names)
        self._require_targets(ids, scores, sizes, (len(source), beams))
        return Targets(ids, scores, sizes)

    def _require_targets(self, ids: Ints, scores: Floats, lengths: Ints, dims: tuple[int, int]) -> None:
        fix = "the bundle is damaged, and `txport verify` says where"
        if scores.shape != dims or lengths.shape != dims or ids.ndim != 3 or ids.shape[:2] != dims:
            shapes = f"{ids.shape}, {scores.shape} and {lengths.shape}"
            raise RunError(f"the {GENERATE} graph gives shapes {shapes} for {dims[0]} x {dims[1]} targets; {fix}")
        if np.isnan(scores).any():
            raise RunError("the scores of the targets are NaN; look for NaN or infinity in the model's weights")
        if lengths.size and not 0 <= lengths.min() <= lengths.max() <= ids.shape[2]:
            raise RunError(f"the {GENERATE} graph gives lengths beyond its {ids.shape[2]} tokens; {fix}")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.facts.writes.size:
            raise RunError(f"the {GENERATE} graph gives tokens outside the vocabulary; {fix}")

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """Raise `UnsupportedError`: a single graph has no separate steps."""
        what = "the single graph finds whole targets, and has no steps to stream, score or give logits by"
        raise UnsupportedError(f"{what}; load the bundle without single")

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """Raise `UnsupportedError`, like `start`."""
        return self.start(tokens, tokens, max_length=0), state

    def select(self, state: State, rows: Ints) -> State:
        """Raise `UnsupportedError`, like `start`."""
        return self.start(rows, rows, max_length=0)

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._engine.ports(role)

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self._engine.placement()
