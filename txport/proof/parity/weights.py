"""The weights inside the graphs against the checkpoint's: none altered, none missing, none that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import Maps
from txport.bundles.manifest import Manifest
from txport.exporters.cpu.rewrite import zeros_name
from txport.exporters.cpu.screening import INITIALIZERS, initializers_of, shorten
from txport.exporters.weights import Held, graph_epsilons, graph_weights, held_weights, read_scales
from txport.models.adapters.adapted import Adapted
from txport.models.checkpoint import Checkpoint, expected_tensors
from txport.models.model import Model
from txport.models.parts import NORM_TYPES, Linear
from txport.proof.parity.measures import WEIGHTS, Comparison, badness, compare, wrong

Array = NDArray[Any]

# How far a quantised weight may lie from the checkpoint's, in the finest steps that its bits allow: by rounding, half a
# step; in 4 bits the largest of a block may be cut so that the others are finer.
STEPS = {8: 0.51, 4: 1.8}
TINY = 1e-30  # in place of the step of a block of zeros
PIECE = 1 << 20  # weights that are compared at once
# How many times the error of even rounding all weights may have. No rounding to the nearest exceeds `COARSE`; in a
# large matrix chance leaves about 1, and a grid twice as coarse 1.8 or more.
COARSE, COARSE_LARGE = 1.9, 1.6


def weighted(manifest: Manifest) -> list[str]:
    """The graphs that hold weights of the checkpoint, by role."""
    return [role for role, graph in manifest.graphs.items() if graph.has_weights]


def compare_weights(bundle: Bundle, checkpoint: Checkpoint) -> Iterator[Comparison]:
    """Each weight in each graph with the checkpoint's: bit for bit, or, if quantised, in the steps that its bits allow.

    A tensor of the checkpoint that no graph holds fails, and so does a weight in a graph that is neither of the
    checkpoint nor computed from it.
    """
    if isinstance(checkpoint.outline, Adapted):
        yield from _compare_adapted(bundle, checkpoint.outline)
        return
    own = expected_tensors(checkpoint.outline)
    aliases = first_names(checkpoint.outline)
    found = set()
    dtype = np.dtype(bundle.manifest.dtype)
    maps = Maps()
    compared: dict[Any, Comparison] = {}  # by where weights lie in files, which several graphs may read
    for role in weighted(bundle.manifest):
        initializers = graph_weights(bundle.file(role), maps)
        table = bundle.manifest.weights
        known = derived(initializers, table, checkpoint)
        for held in held_weights(initializers, table):
            if held.name in aliases:
                found.add(aliases[held.name])
                place = place_of(held)
                if place is None or place not in compared:
                    expected = checkpoint.tensor(aliases[held.name]).numpy()
                    expected = expected if held.quantized is not None else expected.astype(dtype, copy=False)
                    compared[place] = compare_held(role, held, expected)
                yield replace(compared[place], runtime=role)
            elif held.name in known:
                values = known[held.name]
                expected = values.astype(dtype) if values.dtype.kind == "f" else values
                yield compare(WEIGHTS, role, 0, held.name, expected, held.values, 0.0, kind=WEIGHTS)
            elif not is_arithmetic(held.values):
                note = f"{held.values.shape} is no weight of the checkpoint, and nothing known is computed from one"
                yield wrong(held.name, note, case=WEIGHTS, runtime=role, step=0, kind=WEIGHTS)
        yield from compare_epsilons(role, bundle, checkpoint.outline)
    for name in own.keys() - found:
        yield wrong(name, "is in no graph", case=WEIGHTS, runtime="bundle", step=0, kind=WEIGHTS)


def _compare_adapted(bundle: Bundle, model: Adapted) -> Iterator[Comparison]:
    """The weights and buffers of a module of the user's that the graphs hold, and the epsilons of its norms.

    What its code makes of weights before a run is none of them; what the graphs give holds it.
    """
    dtype = np.dtype(bundle.manifest.dtype)
    own = _tensors_of(model)
    norms = {f"{name}.weight": (name, each) for name, each in model.module.named_modules() if hasattr(each, "eps")}
    for role in weighted(bundle.manifest):
        for name, values in graph_weights(bundle.file(role)).items():
            if name in own:
                expected = own[name].astype(dtype) if own[name].dtype.kind == "f" else own[name]
                yield compare(WEIGHTS, role, 0, name, expected, values, 0.0, kind=WEIGHTS)
        for weight, epsilon in graph_epsilons(bundle.file(role)):
            name, norm = norms.get(weight, ("", None))
            if norm is not None and norm.eps is not None:
                expected, found = (np.array([each], np.float32) for each in (norm.eps, epsilon))
                yield compare(WEIGHTS, role, 0, f"{name}.epsilon", expected, found, 0.0, kind=WEIGHTS)


def _tensors_of(model: Adapted) -> dict[str, Array]:
    """The parameters and buffers of a module by each of their names."""
    named = (*model.named_buffers(remove_duplicate=False), *model.named_parameters(remove_duplicate=False))
    return {name: each.detach().numpy() for name, each in named}


def unheld(bundle: Bundle, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Of a module of the user's: `computed` tensors in the graphs that are no weights, `unused` weights in no graph."""
    if not isinstance(checkpoint.outline, Adapted):
        return {}
    own = _tensors_of(checkpoint.outline)
    aliases = first_names(checkpoint.outline)
    held = [graph_weights(bundle.file(role)) for role in weighted(bundle.manifest)]
    used = {aliases.get(name, name) for each in held for name in each}
    computed = {name for each in held for name, values in each.items() if name not in own and not is_arithmetic(values)}
    return {"computed": sorted(computed), "unused": sorted({*aliases.values()} - used)}


def place_of(held: Held) -> Any:
    """Where a weight lies in a file that is mapped into memory, its scales included; None for one that does not."""
    whole = held.quantized
    arrays = [held.values] if whole is None else [whole.values, whole.scales]
    if not all(_is_mapped(array) for array in arrays):
        return None
    return held.name, *((array.__array_interface__["data"], array.shape, array.strides) for array in arrays)


def _is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def compare_epsilons(role: str, bundle: Bundle, model: Model) -> Iterator[Comparison]:
    """The epsilon of each norm in a graph with that of its module: where values are large, it shows in no output."""
    named = ((name, each) for name, each in model.named_modules() if isinstance(each, NORM_TYPES))
    norms = {f"{name}.weight": (name, each) for name, each in named}
    for weight, epsilon in graph_epsilons(bundle.file(role)):
        if weight not in norms:
            note = f"has an epsilon of {epsilon:g}, and is the weight of no norm of the checkpoint"
            yield wrong(weight, note, case=WEIGHTS, runtime=role, step=0, kind=WEIGHTS)
            continue
        name, norm = norms[weight]
        expected, found = (np.array([each], np.float32) for each in (norm.eps, epsilon))
        yield compare(WEIGHTS, role, 0, f"{name}.epsilon", expected, found, 0.0, kind=WEIGHTS)


def first_names(model: Model) -> dict[str, str]:
    """Each name of each weight -> the name that a checkpoint has for it; tied ones have several."""
    first = {id(tensor): name for name, tensor in model.named_parameters()}
    return {name: first[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}


def compare_held(role: str, held: Held, expected: Array) -> Comparison:
    """One weight of a graph with the checkpoint's.

    If quantised, in steps of the finest grid on which the largest weight of its row or block has a place, and so that
    neither a coarser grid nor a shifted one passes: in no weight, and not in the error of all. Of a large matrix, what
    is told is the worst of its pieces, each of some rows.
    """
    if held.form is None or expected.shape != held.values.shape:
        return compare(WEIGHTS, role, 0, held.name, expected, held.values, 0.0, kind=WEIGHTS)
    rows = max(1, PIECE // expected.shape[1])
    pieces = (slice(start, start + rows) for start in range(0, len(expected), rows))
    return max((_compare_piece(role, held, expected, held.form, rows) for rows in pieces), key=badness)


def _compare_piece(role: str, held: Held, expected: Array, form: Form, rows: slice) -> Comparison:
    """Some rows of a quantised weight."""
    steps = np.maximum(finest(expected[rows], form), TINY).astype(np.float64)
    if held.quantized is not None and held.quantized.scales.dtype == np.float16:
        steps += np.spacing(steps.astype(np.float16))  # scales are rounded outwards, to the next of 16 bits
    wanted = expected[rows] / steps
    found = held.values[rows] / steps
    error = _coarsest(wanted.size) / np.sqrt(12) / max(float(np.sqrt(np.square(wanted).mean())), TINY)
    compared = compare(WEIGHTS, role, 0, held.name, wanted, found, STEPS[form.bits], rms=error, kind=WEIGHTS)
    return replace(compared, index=(compared.index[0] + rows.start, *compared.index[1:]))


def _coarsest(weights: int) -> float:
    """The share of an even rounding's error that so many weights may have."""
    return float(min(COARSE, COARSE_LARGE + 5 / np.sqrt(weights)))


def derived(initializers: Mapping[str, Array], table: Mapping[str, Stored], checkpoint: Checkpoint) -> dict[str, Array]:
    """What a graph may hold beside the checkpoint's weights, by name, computed anew.

    Tables of sinusoids, scales in the shape that a look-up wants, its zeros, and the screening of a large projection. A
    scale itself is proven by the weights that it gives back.
    """
    known = {name: buffer.detach().numpy() for name, buffer in checkpoint.outline.named_buffers()}
    for name, values in initializers.items():
        stored = table.get(name)
        if stored is not None and (scale := read_scales(stored, initializers)) is not None:
            known |= {str(stored.scales): scale, str(stored.lookup_scales): scale[..., None]}
            if stored.lookup_zeros is not None and stored.form is not None:
                zero = {8: 0x80, 4: 0x88}[stored.form.bits]
                known[stored.lookup_zeros] = np.full((*scale.shape, 1), zero, np.uint8)
        if name == zeros_name(values.size):
            known[name] = np.zeros(values.size, np.int8)
    if set(INITIALIZERS) <= set(initializers):
        projection = projection_of(checkpoint.outline).weight
        name = next(name for name, each in checkpoint.outline.named_parameters() if each is projection)
        found = shorten(checkpoint.tensor(name).numpy())
        known |= initializers_of(found)
    return known


def projection_of(model: Model) -> Linear:
    """The map to the vocabulary, wherever a model has it."""
    return next(each for each in model.modules() if isinstance(each, Linear) and each.tag == "projection")


def is_arithmetic(values: Array) -> bool:
    """Whether a tensor is too little to be a weight: one number, no number, or the whole ones of shapes and places."""
    return values.size <= 1 or values.dtype in (np.int64, np.int32, np.bool_)


def finest(matrix: Array, form: Form) -> Array:
    """The smallest step for each weight (out, in) at which the largest of its row or block is still in range."""
    block = form.block or matrix.shape[1]
    largest = np.abs(matrix.reshape(len(matrix), -1, block)).max(axis=2)
    steps: Array = np.repeat(largest / (2 ** (form.bits - 1) - 0.5), block, axis=1)
    return steps
