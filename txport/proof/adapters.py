"""Checks of an adapter in PyTorch, before anything is exported, and a note on failures of its graphs.

The checks find mistakes that a graph would repeat, such as wrong shapes, caches in the wrong order, or an unused mask.
Each mistake has its own error message.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import CheckpointError, ParityError
from txport.exporters.program import lengths_of
from txport.models.facts import Facts, StateTensor
from txport.models.model import Decoded
from txport.models.ops import State
from txport.proof.parity.calls import compare_call, no_crash
from txport.proof.parity.cases import Case, Draw
from txport.proof.parity.check import exact_of, fitting_threads
from txport.proof.parity.exact import pad
from txport.proof.parity.replay import Reference
from txport.proof.parity.tolerances import tolerance_of
from txport.targets.ports import INPUT_IDS, PAST, POSITION_IDS, Graph

SOURCES = (7, 3, 5)  # tokens of three rows
PIECES = (3, 1, 2)  # tokens of each run with a growing cache; their sum is one run without cache
LARGEST_RUN = 2048  # maximum number of tokens per run; parity tests the longest lengths
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4}  # relative to the largest absolute value
Run = Callable[[Tensor, State], Decoded]


@torch.inference_mode()
def require_sound(checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` for an adapter that breaks its protocol, `ParityError` for one with wrong results."""
    model = checkpoint.model
    assert isinstance(model, Adapted)
    exact = model if model.fp32_only else copy.deepcopy(model).double()
    with fitting_threads(checkpoint):
        for problem in CHECKS[model.facts.task](exact, Draw(model.facts, np.random.default_rng(0))):
            raise ParityError(f"the adapter of {checkpoint.name} is wrong before it is exported: {problem}")


def _seq2seq(model: Adapted, draw: Draw) -> Iterator[str]:
    facts = model.facts
    sources = draw.sources(*SOURCES)
    ids, lengths = map(torch.from_numpy, pad(sources, facts.vocabulary.pad))
    memory = model.encode(ids, lengths)
    _require(model, "encode", "states", memory.states, (*ids.shape, facts.width))
    yield from _random("encode", [memory.states], [model.encode(ids, lengths).states])
    alone = [model.encode(torch.tensor([each]), torch.tensor([len(each)])) for each in sources]
    pairs = [(memory.states[row, : len(source)], alone[row].states[0]) for row, source in enumerate(sources)]
    yield from _padding("encode", "states", pairs)
    tokens = _tokens(draw, len(sources))
    yield from _steps(model, tokens, lambda new, state: model.decode(new, memory, state))
    whole = model.decode(tokens, memory, model.empty_state(len(ids))).logits
    news = zip(tokens[:, None], alone, strict=True)
    by_row = torch.cat([model.decode(new, each, model.empty_state(1)).logits for new, each in news])
    if (off := _off(whole, by_row)) is not None:
        fix = "mask the source with inputs.source_seen"
        yield f"step gives a row other logits beside longer sources, by {off:.2g}: {fix}"
    read, written = (min(each.longest, LARGEST_RUN) for each in (facts.reads, facts.writes))
    model(torch.tensor(draw.sources(read)), torch.tensor([read]), torch.tensor(draw.targets(written)))


def _causal(model: Adapted, draw: Draw) -> Iterator[str]:
    facts = model.facts

    def run(new: Tensor, state: State) -> Decoded:
        past = next(iter(state.values())).shape[2]
        places = torch.arange(past, past + new.shape[1])[None, :].expand(new.shape)
        return model.extend(new, torch.ones(len(new), past + new.shape[1], dtype=torch.bool), places, state)

    yield from _steps(model, _tokens(draw, len(SOURCES)), run)
    prompts = draw.sources(*SOURCES)
    size = max(SOURCES)
    rows = [[facts.vocabulary.pad] * (size - len(each)) + each for each in prompts]
    places = torch.arange(size)[None, :] - torch.tensor([size - len(each) for each in prompts])[:, None]
    together = model.extend(torch.tensor(rows), places >= 0, places.clamp(min=0), model.empty_state(len(rows))).logits
    alone = [run(torch.tensor([each]), model.empty_state(1)).logits[0] for each in prompts]
    pairs = [(together[row, size - len(each) :], alone[row]) for row, each in enumerate(prompts)]
    if (off := max((_off(*pair) or 0.0 for pair in pairs), default=0.0)) > 0:
        fix = "mask attention with inputs.seen, and take places from inputs.positions"
        yield f"step gives a prompt other logits behind padding, by {off:.2g}: {fix}"
    longest = min(facts.writes.longest, LARGEST_RUN)
    run(torch.tensor(draw.sources(longest)), model.empty_state(1))


def _encode(model: Adapted, draw: Draw) -> Iterator[str]:
    facts = model.facts
    sources = draw.sources(*SOURCES)
    ids, lengths = map(torch.from_numpy, pad(sources, facts.vocabulary.pad))
    mask = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
    found = model.infer(ids, mask)
    if len(found) != len(facts.outputs):
        raise CheckpointError(f"encode must give {len(facts.outputs)} outputs, got {len(found)}")
    for each, value in zip(facts.outputs, found, strict=True):
        _require(model, "encode", each.name, value, each.shape(*ids.shape))
    yield from _random("encode", found, model.infer(ids, mask))
    for row, source in enumerate(sources):
        size = len(source)
        alone = model.infer(ids[row : row + 1, :size], mask[row : row + 1, :size])
        for each, one, other in zip(facts.outputs, found, alone, strict=True):
            pair = (one[row, :size] if each.is_of_tokens else one[row], other[0])
            yield from _padding("encode", each.name, [pair])
    longest = torch.tensor(draw.sources(min(facts.reads.longest, LARGEST_RUN)))
    model.infer(longest, torch.ones_like(longest, dtype=torch.bool))


CHECKS: dict[str, Callable[[Adapted, Draw], Iterator[str]]] = {
    "seq2seq": _seq2seq,
    "causal": _causal,
    "encode": _encode,
}


def _tokens(draw: Draw, rows: int) -> Tensor:
    size = draw.facts.writes.size
    return torch.from_numpy(draw.rng.integers(0, size, (rows, sum(PIECES))))


def _steps(model: Adapted, tokens: Tensor, run: Run) -> Iterator[str]:
    """Compare one run over all tokens with runs over pieces and a growing cache; yield the problems."""
    rows, total = tokens.shape
    whole = run(tokens, model.empty_state(rows))
    _require_decoded(model, whole, total, tokens)
    yield from _random("step", [whole.logits], [run(tokens, model.empty_state(rows)).logits])
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % model.facts.writes.size
    if (off := _off(whole.logits[:, :-1], run(other, model.empty_state(rows)).logits[:, :-1])) is not None:
        yield f"step lets a token see those after it, by {off:.2g}: mask attention with inputs.seen"
    state = model.empty_state(rows)
    done = 0
    for piece in PIECES:
        found = run(tokens[:, done : done + piece], state)
        _require_decoded(model, found, done + piece, tokens[:, done : done + piece])
        for each in model.facts.owned("row"):
            if not torch.equal(found.state[each][:, :, :done], state[each]):
                what = f"the {each.role} of layer {each.layer} does not begin with what was kept of it"
                yield f"{what}: step must give (key, value) of each layer in order, the new ones behind the past"
        if (off := _off(whole.logits[:, done : done + piece], found.logits)) is not None:
            what = f"step gives other logits over a cache of {done} tokens than at once, by {off:.2g}"
            yield f"{what}: what it keeps, or the places and the mask that it takes, do not fit"
        state = dict(found.state)
        done = done + piece


def _require_decoded(model: Adapted, found: Decoded, length: int, tokens: Tensor) -> None:
    _require(model, "step", "logits", found.logits, (*tokens.shape, model.facts.writes.size))
    for each in model.facts.owned("row"):
        name = f"the {each.role} of layer {each.layer}"
        _require(model, "step", name, found.state[each], each.shape(len(tokens), length))
    for each in model.facts.owned("source"):
        size = found.state[each].shape[2]
        _require(model, "project", _named(each), found.state[each], each.shape(len(tokens), size))


def _named(each: StateTensor) -> str:
    return f"the {each.role} of layer {each.layer}"


def _require(model: Adapted, function: str, name: str, value: object, shape: tuple[int, ...]) -> None:
    """Raise `CheckpointError` unless `value` is a finite tensor of `shape` in the model's dtype."""
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{function} must give {name} as a tensor, got a {type(value).__name__}")
    if tuple(value.shape) != shape:
        raise CheckpointError(f"{function} must give {name} of shape {shape}, got {tuple(value.shape)}")
    if value.dtype != model.dtype:
        raise CheckpointError(
            f"{function} must give {name} in the type of the weights, {model.dtype}, got {value.dtype}"
        )
    if not torch.isfinite(value).all():
        raise CheckpointError(
            f"{function} gives {name} with NaN or infinity, at padding perhaps; a row must see something"
        )


def _random(function: str, one: Any, other: Any) -> Iterator[str]:
    if not all(map(torch.equal, one, other)):
        fix = "dropout that does not ask self.training, or something that it keeps on itself"
        yield f"{function} gives other values each time for the same input: look for {fix}"


def _padding(function: str, name: str, pairs: list[tuple[Tensor, Tensor]]) -> Iterator[str]:
    off = max((_off(*pair) or 0.0 for pair in pairs), default=0.0)
    if off > 0:
        yield f"{function} gives a row other {name} beside longer ones, by {off:.2g}: leave out padding by the mask"


def _off(one: Tensor, other: Tensor) -> float | None:
    """Return the largest difference of two tensors, or None if rounding explains it."""
    if one.shape != other.shape:
        return float("inf")
    gap = float((one - other).abs().max()) if one.numel() else 0.0
    return gap if not gap <= CLOSE[one.dtype] * max(1.0, float(one.abs().max())) else None


def note_on_lengths(bundle: Bundle, checkpoint: Checkpoint) -> str:
    """Return a note for a failure if an adapter's graphs are right at the traced lengths; otherwise an empty string."""
    if not isinstance(checkpoint.outline, Adapted):
        return ""
    try:
        right = not any(_wrong_where_traced(bundle, checkpoint))
    except ParityError:
        right = False
    if not right:
        return ""
    what = "at the lengths of its trace it is right, so code of the module holds only for some"
    return f"; {what}: let functions of torch compute with lengths, without an `if` on one (on an empty cache, say)"


def _wrong_where_traced(bundle: Bundle, checkpoint: Checkpoint) -> Iterator[bool]:
    """Yield, for each output of each graph with weights, whether it differs from PyTorch on random inputs."""
    reference = Reference(exact_of(bundle, checkpoint), bundle.manifest)
    rng = np.random.default_rng(0)
    runtime = runtimes.load("ort", bundle)
    tolerance = tolerance_of(bundle.manifest.precision)
    for role, graph in bundle.manifest.graphs.items():
        if not graph.has_weights:
            continue
        call = reference.call(role, 0, _inputs(graph, bundle.manifest.facts, rng))
        with no_crash(f"the {role} graph"):
            actual = runtime.run_graph(role, call.inputs)
        case = Case("the lengths of the trace", [], ())
        yield from (not each.passed for each in compare_call(case, "ort", call, actual, reference, tolerance))


def _inputs(graph: Graph, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
    """Return an array for each input of a graph, with the traced lengths: random, or zeros for caches."""
    lengths = lengths_of(graph)
    found = {}
    size = min(facts.reads.size, facts.writes.size)
    for port in graph.inputs:
        dims = [lengths[dim] if isinstance(dim, str) else dim for dim in port.dims]
        if port.name == INPUT_IDS:
            found[port.name] = rng.integers(0, size, dims)
        elif port.name == POSITION_IDS:
            found[port.name] = lengths[PAST] + np.tile(np.arange(dims[1]), (dims[0], 1))
        elif port.state is not None:
            found[port.name] = np.zeros(dims, np.float32)
        elif port.dtype == "int64":
            found[port.name] = np.ones(dims, np.int64)
        else:
            found[port.name] = rng.standard_normal(dims).astype(np.float32)
    return found
