"""PyTorch behind the graphs of a bundle: what each graph must give, call by call, for a batch of sources."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport.exporters.fused import FUSED
from txport.exporters.graphs import PORTABLE
from txport.models.bundle import Manifest
from txport.models.config import TransformerConfig
from txport.models.ports import (
    ALIGN,
    ATTENTION_MASK,
    CAPACITY,
    COUNT,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    IDS,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LOGITS,
    PAST_LENGTHS,
    SOURCE_LENGTHS,
    STEP,
    own_names,
    past,
    present,
    shortens,
)
from txport.models.transformer import Transformer
from txport.proof.cases import Case

Array = NDArray[Any]
TOP_COUNT, LIKELIEST = 5, 2


@dataclass(frozen=True)
class Call:
    """One run of one graph: all inputs, as the bundle's precision holds them, and all outputs, by port.

    Which token is the likeliest can be a matter of rounding, so where a graph chooses tokens, `choices` (R, V) are the
    scores that they are judged by.
    """

    role: str
    step: int
    inputs: dict[str, Array]
    expected: dict[str, Array]
    choices: Array | None = None

    def new_places(self, name: str) -> NDArray[np.bool_] | None:
        """Where an output that goes on from an input of the same shape differs from it; None for what does not."""
        before = self.inputs.get(name.replace("present.", "past.", 1))
        after = self.expected[name]
        return None if before is None or before is after or before.shape != after.shape else before != after


class Reference:
    """The reference model behind the ports of a bundle's graphs, in fp32."""

    def __init__(self, model: Transformer, manifest: Manifest) -> None:
        self._model, self.manifest = model, manifest

    def walk(self, case: Case, seed: int) -> Iterator[Call]:
        """The encoder, then a call of the decoder for each of the case's steps."""
        return WALKS[self.manifest.target](self, case, np.random.default_rng(seed))

    @property
    def config(self) -> TransformerConfig:
        """The model's."""
        return self.manifest.config

    def call(self, role: str, step: int, inputs: Mapping[str, Array]) -> Call:
        """What PyTorch computes for the ports of one graph."""
        cast = {name: self._cast(array) for name, array in inputs.items()}
        exact = {name: array.astype(np.float32) if is_float(array) else array for name, array in cast.items()}
        return Call(role, step, cast, self._run(self._model, role, exact))

    def own_error(self, call: Call, name: str) -> float:
        """The largest difference of one output where PyTorch itself computes in the bundle's precision."""
        return largest_difference(call.expected[name], self._run(self._rounded, call.role, call.inputs)[name])

    @cached_property
    def _rounded(self) -> Transformer:
        return copy.deepcopy(self._model).to(getattr(torch, self.manifest.dtype))

    @torch.inference_mode()
    def _run(self, model: Transformer, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = MODULES[self.manifest.target][role](model)(*map(torch.from_numpy, inputs.values()))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        names = [port.name for port in self.manifest.graphs[role].outputs]
        return {name: each.numpy() for name, each in zip(names, outputs, strict=True)}

    def _cast(self, array: Array) -> Array:
        return array.astype(self.manifest.dtype) if is_float(array) else array


def largest_difference(expected: Array, actual: Array) -> float:
    """The largest absolute one; NaN if there is one."""
    return float(np.abs(expected.astype(np.float64) - actual.astype(np.float64)).max(initial=0.0))


def is_float(array: Array) -> bool:
    """Whether an array holds floating point numbers."""
    return bool(np.issubdtype(array.dtype, np.floating))


def step_reference(model: Transformer) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A step of the cpu target, and the best tokens as PyTorch chooses them."""

    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *traced, align, count = inputs
        logits, *caches, looks = FUSED[STEP](model)(*traced)
        scores = torch.log_softmax(logits, 1) if count > 0 else logits
        return (logits, *caches, looks if align else looks[:0, :0], *scores.topk(abs(int(count)), dim=1))

    return step


MODULES: dict[str, dict[str, Callable[[Transformer], Any]]] = {
    "portable": PORTABLE,
    "cpu": {**FUSED, STEP: step_reference},
}


def pad(sources: Sequence[Sequence[int]], pad_id: int, padding: int = 0) -> tuple[Array, Array]:
    """Sources padded at the right (B, S), the longest by `padding`, and their lengths (B,)."""
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    ids = np.full((len(sources), lengths.max() + padding), pad_id, dtype=np.int64)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids, lengths


def walk_portable(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The encoder, then the decoder over random tokens, its cache growing from call to call."""
    config, sources = reference.config, case.sources
    ids, lengths = pad(sources, config.pad_id, case.padding)
    mask = (np.arange(ids.shape[1])[None, :] < lengths[:, None]).astype(np.int64)
    encoded = reference.call(ENCODER, 0, {INPUT_IDS: ids, ATTENTION_MASK: mask})
    yield encoded
    nothing = np.zeros((len(sources), config.heads, 0, config.head_size), dtype=np.float32)
    memory = {ENCODER_HIDDEN_STATES: encoded.expected[LAST_HIDDEN_STATE], ENCODER_ATTENTION_MASK: mask}
    state = {**memory, **dict.fromkeys(past(config), nothing)}
    for step, length in enumerate(case.steps):
        tokens = rng.integers(0, config.target_vocab_size, (len(sources), length))
        call = reference.call(DECODER, step, {INPUT_IDS: tokens, **state})
        yield call
        state.update(zip(past(config), (call.expected[name] for name in present(config)), strict=True))


def walk_cpu(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The encoder, then single tokens over random caches that end at each of `steps`, rows of unequal lengths.

    The first row always has the longest past; one beam a source in turn with two.
    """
    config, sources = reference.config, case.sources
    ids, lengths = pad(sources, config.pad_id, case.padding)
    source_lengths = lengths.astype(np.int32)
    encoded = reference.call(ENCODER, 0, {INPUT_IDS: ids, SOURCE_LENGTHS: source_lengths})
    yield encoded
    for step, position in enumerate(np.cumsum(case.steps)):
        beams = 1 + step % 2
        rows = beams * len(sources)
        past_lengths = rng.integers(0, position, rows).astype(np.int32)
        past_lengths[0] = position - 1
        shape = (rows, config.heads, position, config.head_size)
        real = (np.arange(position) < past_lengths[:, None])[:, None, :, None]  # beyond, a kernel may write zeros
        own = {name: (real * rng.standard_normal(shape)).astype(np.float32) for name in own_names(config, "past")}
        tokens = rng.integers(0, config.target_vocab_size, (len(sources), beams))
        fixed = {PAST_LENGTHS: past_lengths, CAPACITY: np.array([position], np.int32), SOURCE_LENGTHS: source_lengths}
        for count in _counts(reference.manifest):
            asked = {ALIGN: np.array([count > 0]), COUNT: np.array([count])}
            call = reference.call(STEP, step, {INPUT_IDS: tokens, **fixed, **encoded.expected, **own, **asked})
            every = call.expected[LOGITS]
            choices = every if count < 0 else every - np.logaddexp.reduce(every, axis=1, keepdims=True)
            unknown = (IDS, LOGITS) if count < 0 else (IDS,)  # two tokens may be as good, and logits need not be there
            expected = {name: values for name, values in call.expected.items() if name not in unknown}
            yield replace(call, expected=expected, choices=choices)


def _counts(manifest: Manifest) -> list[int]:
    """The numbers of best tokens to ask for: a shortlist only where its sums are exact, as the driver does."""
    from txport.runtimes.sessions import may_saturate

    config, counts = manifest.config, [TOP_COUNT]
    if not (shortens(config, manifest.precision) and may_saturate()):
        counts.append(-LIKELIEST)
    return [max(-config.target_vocab_size, min(count, config.target_vocab_size)) for count in counts]


WALKS = {"portable": walk_portable, "cpu": walk_cpu}
