"""The columns of a matrix whose inputs are much larger than the others.

One scale for a row drops the digits of all inputs but these. They are the same columns for all texts: random tokens
find them as well as sentences do (docs/few-bits.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from txport.audio.spectrogram import drawn_features
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import converted
from txport.exporters.tracing.trace import weight_names
from txport.models.audio import Features
from txport.models.facts import Facts, Task
from txport.models.model import Model
from txport.models.parts import Linear

COLUMNS: dict[Task, int] = {"encode": 16, "causal": 32}  # others that read text have inputs of about the same size
USUAL = 16  # columns in a model that reads features, and those that a matrix of another one may have
LEAST = 4  # times as many inputs has a matrix of which some are kept in fp32
ROWS, LENGTH = 4, 64  # random sources


def has_columns(facts: Facts, rows: int | None) -> bool:
    """Return whether int8 matrices of a model have columns in fp32; `rows` as in `choose_form`."""
    return (facts.task in COLUMNS or isinstance(facts.reads, Features)) and (rows is None) != facts.is_causal


def find_columns(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Return weight -> the columns with the largest inputs, for the linear layers of a model.

    The model runs in float64, so that every machine finds the same. Names are those of a trace.
    """
    outline = checkpoint.outline
    count = COLUMNS.get(outline.facts.task, USUAL)
    names = weight_names(outline)
    layers = {
        name: names[id(each.weight)]
        for name, each in outline.named_modules()
        if isinstance(each, Linear) and each.in_features >= LEAST * count
    }
    model = converted(checkpoint.model, torch.float64)
    source, target = random_inputs(outline.facts)
    largest: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> None:
        if not x.numel():  # an expert that no token takes
            return
        found = x.abs().flatten(0, -2).amax(0)
        largest[name] = torch.maximum(largest[name], found) if name in largest else found

    with torch.inference_mode(), watching({name: model.get_submodule(name) for name in layers}, keep):
        run(model, source, target)
    order = {name: values.argsort(descending=True, stable=True) for name, values in largest.items()}
    return {layers[name]: tuple(sorted(indices[:count].tolist())) for name, indices in order.items()}


def largest_columns(inputs: Sequence[Tensor], task: Task) -> tuple[int, ...]:
    """Return the columns with the largest of the inputs (..., in) of a matrix; none for a matrix with few inputs."""
    count = COLUMNS.get(task, USUAL)
    inputs = [x for x in inputs if x.numel()]  # an expert may be given no token
    if not inputs or inputs[0].shape[-1] < LEAST * count:
        return ()
    largest = torch.stack([x.abs().flatten(0, -2).amax(0) for x in inputs]).amax(0)
    return tuple(sorted(largest.argsort(descending=True, stable=True)[:count].tolist()))


def run(model: Model, source: Tensor, target: Tensor | None = None) -> None:
    """Run a model on tokens (rows, length) without padding, or on features (rows, M, F).

    An encoder-decoder reads `target` (rows, T), too.
    """
    mask = torch.ones(source.shape[:2], dtype=torch.bool)
    if not model.facts.generates:
        model.infer(source, mask)
    elif target is not None:
        model(source, mask.sum(1), target)
    else:
        places = torch.arange(source.shape[1]).expand(source.shape)
        model.extend(source, mask, places, model.empty_state(len(source)), wanted=places[:, ::8])  # logits take memory


def random_inputs(facts: Facts) -> tuple[Tensor, Tensor | None]:
    """Return random sources of tokens that are not special, or features and a random target; see `run`."""
    draw = np.random.default_rng(0)
    reads = facts.reads
    if isinstance(reads, Features):
        target = draw.integers(facts.writes.size, size=(1, min(facts.writes.longest, LENGTH)))
        return torch.from_numpy(drawn_features(reads, 0)[None]).to(torch.float64), torch.from_numpy(target)
    known = np.setdiff1d(np.arange(reads.size), reads.special)
    return torch.from_numpy(draw.choice(known, (ROWS, min(reads.longest, LENGTH)))), None


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Return a context in which `see` gets the name and the input of each layer that runs."""
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: see(name, inputs[0]))
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
