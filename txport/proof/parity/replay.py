"""PyTorch in float64 behind the graphs of a bundle: what each must give, call by call, for a batch of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport.bundles.manifest import Manifest
from txport.bundles.ports import (
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
    cross_names,
    own_names,
    past,
    present,
    shortens,
)
from txport.exporters.fused import FUSED
from txport.exporters.graphs import PORTABLE
from txport.models.config import TransformerConfig
from txport.models.transformer import Transformer
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact, pad

Array = NDArray[Any]
TOP_COUNT, LIKELIEST = 5, 2
QUIET = 0.25  # of the size of the model's own keys: over random ones, attention would be sharper than it ever is


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

    @property
    def logits(self) -> Array | None:
        """All of them, where there are any."""
        return self.expected.get(LOGITS, self.choices)

    def new_places(self, name: str) -> NDArray[np.bool_] | None:
        """Where an output that goes on from an input of the same shape differs from it; None for what does not."""
        before = self.inputs.get(name.replace("present.", "past.", 1))
        after = self.expected[name]
        return None if before is None or before is after or before.shape != after.shape else before != after


class Reference:
    """The model behind the ports of a bundle's graphs, in float64; what it gives is stored in fp32."""

    def __init__(self, exact: Exact, manifest: Manifest) -> None:
        self._exact, self.manifest = exact, manifest
        self._own: tuple[Mapping[str, Array], dict[int, dict[str, Array]]] = (
            {},
            {},
        )  # of a call: inputs, outputs by draw

    @property
    def model(self) -> Transformer:
        """What computes, in float64: the one to watch."""
        return self._exact.model

    def replay(self, case: Case, seed: int) -> Iterator[Call]:
        """The encoder, then a call of the decoder for each of the case's steps."""
        return REPLAYS[self.manifest.target](self, case, np.random.default_rng(seed))

    @property
    def config(self) -> TransformerConfig:
        """The model's."""
        return self.manifest.config

    def call(self, role: str, step: int, inputs: Mapping[str, Array]) -> Call:
        """What is right for the ports of one graph, whose inputs are as the bundle's precision holds them."""
        cast = {name: array.astype(self.manifest.dtype) if is_float(array) else array for name, array in inputs.items()}
        return Call(role, step, cast, self._run(self._exact.model, role, cast))

    def own(self, call: Call, name: str, draw: int = 0) -> Array:
        """What PyTorch itself gives for one output in the bundle's precision; for other draws, with other last bits."""
        if self._own[0] is not call.inputs:
            self._own = call.inputs, {}
        known = self._own[1]
        if draw not in known:
            with self._exact.own.context(draw):
                known[draw] = self._run(self._exact.own.model, call.role, call.inputs)
        return known[draw][name]

    @torch.inference_mode()
    def _run(self, model: Transformer, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        dtype = next(model.parameters()).dtype
        given = ((torch.from_numpy(array), is_float(array)) for array in inputs.values())
        outputs = MODULES[self.manifest.target][role](model)(*(x.to(dtype) if cast else x for x, cast in given))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        names = [port.name for port in self.manifest.graphs[role].outputs]
        stored = (each.float() if each.is_floating_point() else each for each in outputs)
        return {name: each.numpy() for name, each in zip(names, stored, strict=True)}


def is_float(array: Array) -> bool:
    """Whether an array holds floating point numbers."""
    return bool(np.issubdtype(array.dtype, np.floating))


def step_reference(model: Transformer) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A step of the cpu target, and the best tokens as PyTorch chooses them."""

    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *traced, align, count = inputs
        logits, *caches, attention = FUSED[STEP](model)(*traced)
        scores = torch.log_softmax(logits, 1) if count > 0 else logits
        return (logits, *caches, attention if align else attention[:0, :0], *scores.topk(abs(int(count)), dim=1))

    return step


MODULES: dict[str, dict[str, Callable[[Transformer], Any]]] = {
    "portable": PORTABLE,
    "cpu": {**FUSED, STEP: step_reference},
}


def replay_portable(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
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


def replay_cpu(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """The encoder, then single tokens over random caches that end at each of `steps`, rows of unequal lengths.

    What the caches hold is about as large as what the model itself puts there.

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
        sizes = [QUIET * _size(encoded.expected[name]) for name in cross_names(config)]
        own = {
            name: (size * real * rng.standard_normal(shape)).astype(np.float32)
            for name, size in zip(own_names(config, "past"), sizes, strict=True)
        }
        tokens = rng.integers(0, config.target_vocab_size, (len(sources), beams))
        fixed = {PAST_LENGTHS: past_lengths, CAPACITY: np.array([position], np.int32), SOURCE_LENGTHS: source_lengths}
        for count in _counts(reference.manifest):
            asked = {ALIGN: np.array([count > 0]), COUNT: np.array([count])}
            call = reference.call(STEP, step, {INPUT_IDS: tokens, **fixed, **encoded.expected, **own, **asked})
            every = call.expected[LOGITS].astype(np.float64)
            choices = every if count < 0 else every - np.logaddexp.reduce(every, axis=1, keepdims=True)
            unknown = (IDS, LOGITS) if count < 0 else (IDS,)  # two tokens may be as good, and logits need not be there
            expected = {name: values for name, values in call.expected.items() if name not in unknown}
            yield replace(call, expected=expected, choices=choices)


def _size(values: Array) -> float:
    """The root of the mean square; 1 for zeros."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0


def _counts(manifest: Manifest) -> list[int]:
    """The numbers of best tokens to ask for: screening only where its sums are exact, as the driver does."""
    from txport.runtimes.sessions import may_saturate

    config, counts = manifest.config, [TOP_COUNT]
    if not (shortens(config, manifest.precision) and may_saturate()):
        counts.append(-LIKELIEST)
    return [max(-config.target_vocab_size, min(count, config.target_vocab_size)) for count in counts]


REPLAYS = {"portable": replay_portable, "cpu": replay_cpu}
