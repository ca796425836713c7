"""Reference calls of the graphs of a bundle, computed by PyTorch in float64 for a batch of sources."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    LAST_PLACES,
    LOGITS,
    MODEL,
    PAST_LENGTHS,
    POSITION_IDS,
    PREFILL,
    PROMPT_SIZE,
    SOURCE_LENGTHS,
    STEP,
    screens,
)
from txport.exporters.targets import EXPORTERS
from txport.models.facts import Facts, Task
from txport.models.model import Model
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact
from txport.proof.parity.replays import cuda
from txport.runtimes.inputs import batch, text_inputs
from txport.system.arrays import Array

TOP_COUNT, LIKELIEST = 5, 2
SPARE = 3  # positions of a prompt's caches that it does not fill
QUIET = 0.25  # times the size of the model's own keys: with random keys, attention would be sharper than it ever is


@dataclass(frozen=True)
class Call:
    """One run of one graph, by port: all inputs, in the bundle's precision, and all outputs that are determined.

    Rounding may decide which token is the most probable. If a graph selects tokens, `choices` (R, V) are therefore the
    scores by which its tokens are judged.
    """

    role: str
    step: int
    inputs: dict[str, Array]
    expected: dict[str, Array]
    choices: Array | None = None
    becomes: Mapping[str, str] = field(default_factory=dict)  # output with a new state -> input with the old state

    @property
    def logits(self) -> Array | None:
        """The logits that the graph outputs; without them, `choices`, which may be None."""
        return self.expected.get(LOGITS, self.choices)

    def new_places(self, name: str) -> NDArray[np.bool_] | None:
        """Return where a new state differs from the old one (bool); None for other outputs and shapes."""
        before = self.inputs.get(self.becomes.get(name, ""))
        after = self.expected[name]
        return None if before is None or before is after or before.shape != after.shape else before != after


class Reference:
    """The model with the ports of a bundle's graphs. It computes in float64 and stores its outputs in fp32.

    If it `remembers`, it does not run the model again if a call differs from the last one only in the requested tokens.
    """

    def __init__(self, exact: Exact, manifest: Manifest, *, remembers: bool = False) -> None:
        self._exact = exact
        self.manifest = manifest
        self._remembers = remembers
        self._before: tuple[Model, list[Array], tuple[torch.Tensor, ...]] | None = None
        self._own: tuple[Mapping[str, Array], dict[int, dict[str, Array]]] = (
            {},
            {},
        )  # of the last call: inputs, outputs by draw

    @property
    def model(self) -> Model:
        """The model in float64 that computes the reference, so that callers can record its layers."""
        return self._exact.model

    def replay(self, case: Case, seed: int) -> Iterator[Call]:
        """Yield the calls of a case for the target and task of the bundle; `seed` determines the random inputs."""
        return REPLAYS[self.manifest.target, self.facts.task](self, case, np.random.default_rng(seed))

    @property
    def facts(self) -> Facts:
        """The facts of the model."""
        return self.manifest.facts

    def call(self, role: str, step: int, inputs: Mapping[str, Array]) -> Call:
        """Return one call of a graph with its exact outputs, given inputs rounded to the bundle's precision."""
        cast = self._cast(role, inputs)
        becomes = self.manifest.graphs[role].becomes
        return Call(role, step, cast, self._run(self._exact.model, role, cast), becomes=becomes)

    def _cast(self, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        graph = self.manifest.graphs[role]
        cast = {name: held_as(graph.port(name).dtype, array) for name, array in inputs.items()}
        if self.manifest.made_for.on_gpu:  # arrays in 16 bits exist only on the device
            cast = {name: array.astype(np.float32) if is_float(array) else array for name, array in cast.items()}
        return cast

    def own(self, call: Call, name: str, draw: int = 0) -> Array:
        """Return one output of PyTorch itself in the bundle's precision; with random last bits if `draw` is not 0."""
        if self._own[0] is not call.inputs:
            self._own = call.inputs, {}
        known = self._own[1]
        if draw not in known:
            self._before = None  # the same model computes differently in this context
            with self._exact.own.context(draw):
                known[draw] = self._run(self._exact.own.model, call.role, call.inputs)
            self._before = None
        return known[draw][name]

    @torch.inference_mode()
    def _run(self, model: Model, role: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        dtype = next(model.parameters()).dtype
        given = ((torch.from_numpy(array), is_float(array)) for array in inputs.values())
        tensors = [x.to(dtype) if cast else x for x, cast in given]
        graph = self.manifest.graphs[role]
        if not graph.has_weights:
            return cuda.moved(graph, inputs)
        if EXPORTERS[self.manifest.target].traced(graph) != graph:  # tokens are selected after what is traced
            outputs = self._stepped(model, inputs, tensors)
        else:
            outputs = module_of(model, self.manifest, role)(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        names = [port.name for port in graph.outputs]
        stored = (each.float() if each.is_floating_point() else each for each in outputs)
        return {name: each.numpy() for name, each in zip(names, stored, strict=True)}

    def _stepped(
        self, model: Model, inputs: Mapping[str, Array], tensors: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs of a step; with the same arrays as in the last step, only select its tokens again."""
        arrays = [array for name, array in inputs.items() if name not in (COUNT, ALIGN)]
        before = self._before
        if before is None or before[0] is not model or not all(map(operator.is_, before[1], arrays)):
            before = (model, arrays, module_of(model, self.manifest, STEP)(*tensors[: len(arrays)]))
        self._before = before if self._remembers else None
        return chosen(before[2], self.manifest, *tensors[len(arrays) :])


def held_as(dtype: str, array: Array) -> Array:
    """Return an array in the dtype of a port; integers stay unchanged."""
    return array.astype(np.dtype(dtype), copy=False) if is_float(array) else array


def is_float(array: Array) -> bool:
    """Return whether an array holds floating-point numbers."""
    return bool(np.issubdtype(array.dtype, np.floating)) or array.dtype.name == "bfloat16"


def module_of(model: Model, manifest: Manifest, role: str) -> Callable[..., Any]:
    """Return the PyTorch function of a graph; that of a step of the cpu target does not select the best tokens."""
    return EXPORTERS[manifest.target].modules[manifest.facts.task][role](model)


def chosen(outputs: tuple[torch.Tensor, ...], manifest: Manifest, *asked: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a cpu step: PyTorch selects the tokens, and attention is empty unless requested."""
    *aligns, count = asked
    logits, *caches = outputs
    scores = torch.log_softmax(logits, 1) if count > 0 else logits
    if manifest.facts.attention is not None:
        attention = caches.pop()
        caches.append(attention if aligns[0] else attention[:0, :0])
    return (logits, *caches, *scores.topk(abs(int(count)), dim=1))


def replay_portable(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the encoder, then the decoder over random tokens; its cache grows from call to call."""
    facts = reference.facts
    sources = case.sources
    given, lengths = batch(sources, facts, case.padding)
    masks = {}
    kept = {}
    if facts.masks_source:
        mask = (np.arange(given.shape[1])[None, :] < lengths[:, None]).astype(np.int64)
        masks = {ATTENTION_MASK: mask}
        kept = {ENCODER_ATTENTION_MASK: mask}
    encoded = reference.call(ENCODER, 0, {_source_port(reference): given, **masks})
    yield encoded
    state = {ENCODER_HIDDEN_STATES: encoded.expected[LAST_HIDDEN_STATE], **kept}
    state |= _empty(reference, len(sources))
    for step, length in enumerate(case.steps):
        tokens = rng.integers(0, facts.writes.size, (len(sources), length))
        call = reference.call(DECODER, step, {INPUT_IDS: tokens, **state})
        yield call
        state |= {name: call.expected[output] for output, name in call.becomes.items()}


def replay_portable_causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the prompts, padded on the left, then random tokens; the cache grows from call to call."""
    facts = reference.facts
    rows = len(case.sources)
    ids, lengths = batch(case.sources, facts, case.padding)
    size = ids.shape[1]
    mask = (np.arange(size)[None, :] >= size - lengths[:, None]).astype(np.int64)
    places = np.maximum(np.arange(size)[None, :] - (size - lengths)[:, None], 0)
    ids = np.where(mask, np.take_along_axis(ids, places, axis=1), facts.writes.pad)
    state = _empty(reference, rows)
    for step, length in enumerate((None, *case.steps)):
        if length is not None:
            ids = rng.integers(0, facts.writes.size, (rows, length))
            places = mask.sum(axis=1, keepdims=True) + np.arange(length)[None, :]
            mask = np.concatenate([mask, np.ones((rows, length), np.int64)], axis=1)
        call = reference.call(DECODER, step, {INPUT_IDS: ids, ATTENTION_MASK: mask, POSITION_IDS: places, **state})
        yield call
        state = {name: call.expected[output] for output, name in call.becomes.items()}


def replay_portable_encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(MODEL, 0, text_inputs(ids, lengths, reference.facts))


def replay_cpu(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the encoder, then single tokens over random caches; see `_steps`."""
    given, lengths = batch(case.sources, reference.facts, case.padding)
    source_lengths = lengths.astype(np.int32)
    encoded = reference.call(ENCODER, 0, {_source_port(reference): given, SOURCE_LENGTHS: source_lengths})
    yield encoded
    sizes = [QUIET * _size(each) for each in encoded.expected.values()]
    shared = {SOURCE_LENGTHS: source_lengths, **encoded.expected}
    yield from _steps(reference, case, rng, shared, sizes, 0)


def replay_cpu_causal(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the prompts, then single tokens over random caches; see `_steps`."""
    graph = reference.manifest.graphs[PREFILL]
    rows = len(case.sources)
    ids, _ = batch(case.sources, reference.facts, case.padding)
    size = ids.shape[1]
    room = {name: np.zeros(each.shape(rows, size + SPARE), np.float32) for each, name in graph.past().items()}
    places = {LAST_PLACES: np.full(rows, size - 1, np.int32), PROMPT_SIZE: np.array([size], np.int32)}
    filled = reference.call(PREFILL, 0, {INPUT_IDS: ids, **places, **room})
    yield filled
    sizes = [QUIET * _size(each[:, :, :size]) for each in filled.expected.values()]
    yield from _steps(reference, case, rng, {}, sizes, size)


def replay_cpu_encode(reference: Reference, case: Case, rng: np.random.Generator) -> Iterator[Call]:
    """Yield the only graph, over all sources."""
    ids, lengths = batch(case.sources, reference.facts, case.padding)
    yield reference.call(MODEL, 0, {INPUT_IDS: ids, SOURCE_LENGTHS: lengths.astype(np.int32)})


def _steps(
    reference: Reference,
    case: Case,
    rng: np.random.Generator,
    shared: Mapping[str, Array],
    sizes: Sequence[float],
    before: int,
) -> Iterator[Call]:
    """Yield single tokens over random caches, which end at `before` + cumsum(`case.steps`).

    The rows have random lengths, and the first row always has the longest past. `sizes` are the RMS of the values in
    each cache. Steps have one and two beams per source in turn.
    """
    facts = reference.facts
    past = reference.manifest.graphs[STEP].past("row")
    for step, position in enumerate(before + np.cumsum(case.steps, dtype=np.int64)):
        beams = 1 + step % 2
        rows = beams * len(case.sources)
        past_lengths = rng.integers(0, position, rows).astype(np.int32)
        past_lengths[0] = position - 1
        real = (np.arange(position) < past_lengths[:, None])[:, None, :, None]  # beyond it, a kernel may write zeros
        own = {
            name: (size * real * rng.standard_normal(each.shape(rows, int(position)))).astype(np.float32)
            for (each, name), size in zip(past.items(), sizes, strict=True)
        }
        tokens = rng.integers(0, facts.writes.size, (len(case.sources), beams))
        fixed = {PAST_LENGTHS: past_lengths, CAPACITY: np.array([position], np.int32)}
        for count in _counts(reference.manifest):
            asked = {COUNT: np.array([count])}
            if facts.attention is not None:
                asked = {ALIGN: np.array([count > 0]), **asked}
            call = reference.call(STEP, step, {INPUT_IDS: tokens, **fixed, **shared, **own, **asked})
            every = call.expected[LOGITS].astype(np.float64)
            choices = every if count < 0 else every - np.logaddexp.reduce(every, axis=1, keepdims=True)
            unknown = (IDS, LOGITS) if count < 0 else (IDS,)  # tokens may tie; logits may be left out
            expected = {name: values for name, values in call.expected.items() if name not in unknown}
            yield replace(call, expected=expected, choices=choices)


def _source_port(reference: Reference) -> str:
    """Return the name of the encoder's input for sources."""
    return reference.manifest.graphs[ENCODER].inputs[0].name


def _empty(reference: Reference, rows: int) -> dict[str, Array]:
    """Return the caches of the portable decoder before the first token, by input."""
    past = reference.manifest.graphs[DECODER].past()
    return {name: np.zeros(each.shape(rows, 0), np.float32) for each, name in past.items()}


def _size(values: Array) -> float:
    """Return the RMS of the values; 1 for zeros."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0


def _counts(manifest: Manifest) -> list[int]:
    """Return the numbers of best tokens to request; like the driver, use screening only if its sums are exact."""
    from txport.runtimes.ort.sessions import may_saturate

    facts = manifest.facts
    counts = [TOP_COUNT]
    if not (screens(facts, manifest.precision) and may_saturate()):
        counts.append(-LIKELIEST)
    return [max(-facts.writes.size, min(count, facts.writes.size)) for count in counts]


REPLAYS: dict[tuple[str, Task], Callable[[Reference, Case, np.random.Generator], Iterator[Call]]] = {
    ("portable", "seq2seq"): replay_portable,
    ("portable", "causal"): replay_portable_causal,
    ("portable", "encode"): replay_portable_encode,
    ("cpu", "seq2seq"): replay_cpu,
    ("cpu", "causal"): replay_cpu_causal,
    ("cpu", "encode"): replay_cpu_encode,
    ("cuda", "seq2seq"): cuda.replay_seq2seq,
    ("cuda", "causal"): cuda.replay_causal,
    ("cuda", "encode"): cuda.replay_encode,
}
