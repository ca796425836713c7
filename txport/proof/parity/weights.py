"""Compare the weights in the graphs with the checkpoint's: none may differ, be missing or be unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form, Stored
from txport.bundles.graphs import Maps
from txport.bundles.manifest import Manifest
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint, expected_tensors
from txport.exporters.cpu.screening import INITIALIZERS, initializers_of, shorten
from txport.exporters.fused.quantize import Quantized, pack, rest_of, spread_of, sums_of_rows
from txport.exporters.weights import Held, graph_epsilons, graph_weights, held_weights, read_quantized
from txport.models.model import Model
from txport.models.parts import NORM_TYPES, Linear
from txport.proof.parity.measures import WEIGHTS, Comparison, badness, compare, wrong
from txport.system.arrays import Array

# Allowed difference of a quantised weight from the checkpoint's, in the finest steps that its bits allow. Rounding
# changes it by half a step. In 4 bits, the largest weight of a block may be clipped to make the steps finer.
STEPS = {8: 0.51, 4: 1.8}
TINY = 1e-30  # replaces the step of a block of zeros
PIECE = 1 << 20  # weights that are compared at once
# Allowed RMS error of a matrix, divided by that of uniform rounding. Rounding to the nearest never exceeds `COARSE`. In
# a large matrix, the quotient is about 1, and with steps twice as large it is 1.8 or more.
COARSE, COARSE_LARGE = 1.9, 1.6


def weighted(manifest: Manifest) -> list[str]:
    """Return the roles of the graphs that hold weights of the checkpoint."""
    return [role for role, graph in manifest.graphs.items() if graph.has_weights]


def compare_weights(bundle: Bundle, checkpoint: Checkpoint) -> Iterator[Comparison]:
    """Compare each weight in each graph with the checkpoint's: exactly, or if quantised, in the steps of its bits.

    A weight of the checkpoint that is in no graph fails. A weight of a graph that is neither in the checkpoint nor
    computed from it fails, too.
    """
    if isinstance(checkpoint.outline, Adapted):
        yield from _compare_adapted(bundle, checkpoint.outline)
        return
    own = expected_tensors(checkpoint.outline)
    aliases = first_names(checkpoint.outline)
    found = set()
    dtype = np.dtype(bundle.manifest.dtype)
    maps = Maps()
    compared: dict[object, Comparison] = {}  # by location in a file, which several graphs may share
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
                    compared[place] = compare_held(role, held, expected, is_exact=_is_taken(held, checkpoint))
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
    """Compare the weights and buffers of a user's module that are in the graphs, and the epsilons of its norms.

    Tensors that were computed from weights at export are covered by the comparison of the graphs' outputs only.
    """
    dtype = np.dtype(bundle.manifest.dtype)
    own = _tensors_of(model)
    for role in weighted(bundle.manifest):
        for name, values in graph_weights(bundle.file(role)).items():
            if name in own:
                expected = own[name].astype(dtype) if own[name].dtype.kind == "f" else own[name]
                yield compare(WEIGHTS, role, 0, name, expected, values, 0.0, kind=WEIGHTS)
        yield from compare_own_epsilons(role, bundle, model)


def compare_own_epsilons(role: str, bundle: Bundle, model: Adapted) -> Iterator[Comparison]:
    """Compare the epsilon of each norm of a user's module that is in a graph."""
    norms = {f"{name}.weight": (name, each) for name, each in model.module.named_modules() if hasattr(each, "eps")}
    for weight, epsilon in graph_epsilons(bundle.file(role)):
        name, norm = norms.get(weight, ("", None))
        if norm is not None and norm.eps is not None:
            expected, found = (np.array([each], np.float32) for each in (norm.eps, epsilon))
            yield compare(WEIGHTS, role, 0, f"{name}.epsilon", expected, found, 0.0, kind=WEIGHTS)


def _tensors_of(model: Adapted) -> dict[str, Array]:
    """Return the parameters and buffers of a module, by each of their names."""
    named = (*model.named_buffers(remove_duplicate=False), *model.named_parameters(remove_duplicate=False))
    return {name: each.detach().numpy() for name, each in named}


def unheld(bundle: Bundle, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return `computed`, tensors of the graphs that are no weights, and `unused`, weights in no graph.

    Empty unless the model is a user's module.
    """
    if not isinstance(checkpoint.outline, Adapted):
        return {}
    own = _tensors_of(checkpoint.outline)
    aliases = first_names(checkpoint.outline)
    held = [graph_weights(bundle.file(role)) for role in weighted(bundle.manifest)]
    used = {aliases.get(name, name) for each in held for name in each}
    computed = {name for each in held for name, values in each.items() if name not in own and not is_arithmetic(values)}
    return {"computed": sorted(computed), "unused": sorted({*aliases.values()} - used)}


def place_of(held: Held) -> object:
    """Return the location of a weight and its scales in a memory-mapped file; None if they are not mapped."""
    whole = held.quantized
    parts = [held.values] if whole is None else [whole.values, whole.scales, whole.zeros, whole.columns]
    arrays = [each for each in parts if each is not None]
    if not all(_is_mapped(array) for array in arrays):
        return None
    return held.name, *((array.__array_interface__["data"], array.shape, array.strides) for array in arrays)


def _is_mapped(array: object) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def compare_epsilons(role: str, bundle: Bundle, model: Model) -> Iterator[Comparison]:
    """Compare the epsilon of each norm in a graph with its module's: large values hide a wrong one in the outputs."""
    named = ((name, each) for name, each in model.named_modules() if isinstance(each, NORM_TYPES))
    norms = {f"{name}.weight": (name, each) for name, each in named}
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)} - norms.keys()
    for weight, epsilon in graph_epsilons(bundle.file(role)):
        if weight in own:  # of a norm of the architecture's own: the outputs show its epsilon
            continue
        if weight not in norms:
            note = f"has an epsilon of {epsilon:g}, and is the weight of no norm of the checkpoint"
            yield wrong(weight, note, case=WEIGHTS, runtime=role, step=0, kind=WEIGHTS)
            continue
        name, norm = norms[weight]
        expected, found = (np.array([each], np.float32) for each in (norm.eps, epsilon))
        yield compare(WEIGHTS, role, 0, f"{name}.epsilon", expected, found, 0.0, kind=WEIGHTS)


def first_names(model: Model) -> dict[str, str]:
    """Map each name of each weight to its name in the checkpoint; tied weights have several names."""
    first = {id(tensor): name for name, tensor in model.named_parameters()}
    return {name: first[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}


def _is_taken(held: Held, checkpoint: Checkpoint) -> bool:
    """Return whether a weight in 4 bits is that of another tool, which has the same numbers in a bundle."""
    return held.form is not None and held.form.zeros and held.name in checkpoint.packed


def compare_held(role: str, held: Held, expected: Array, *, is_exact: bool = False) -> Comparison:
    """Compare one weight of a graph with the checkpoint's; it must be the same if it is not quantised or `is_exact`.

    The unit of a quantised weight is the step of the finest grid that includes the largest weight of its row or block.
    The largest difference and the RMS of all differences are bounded, so coarser and shifted grids fail. A large matrix
    is compared in pieces of some rows, and the worst piece is returned.
    """
    if held.form is None or is_exact or expected.shape != held.values.shape:
        return compare(WEIGHTS, role, 0, held.name, expected, held.values, 0.0, kind=WEIGHTS)
    if columns := list(held.form.columns):
        wanted, found = (each[:, columns] for each in (expected, held.values))
        compared = compare(WEIGHTS, role, 0, f"{held.name}, columns in fp32", wanted, found, 0.0, kind=WEIGHTS)
        if not compared.passed:
            return compared
    rows = max(1, PIECE // expected.shape[1])
    pieces = (slice(start, start + rows) for start in range(0, len(expected), rows))
    return max((_compare_piece(role, held, expected, held.form, rows) for rows in pieces), key=badness)


def _compare_piece(role: str, held: Held, expected: Array, form: Form, rows: slice) -> Comparison:
    """Compare some rows of a quantised weight."""
    steps = np.maximum(finest(expected[rows], form), TINY)
    if held.quantized is not None and held.quantized.scales.dtype == np.float16:
        steps += np.spacing(steps.astype(np.float16))  # scales are rounded away from 0, to the next fp16 number
    wanted, found = (rest_of(each[rows], form) / steps for each in (expected, held.values))
    error = _coarsest(wanted.size) / np.sqrt(12) / max(float(np.sqrt(np.square(wanted).mean())), TINY)
    compared = compare(WEIGHTS, role, 0, held.name, wanted, found, STEPS[form.bits], rms=error, kind=WEIGHTS)
    return replace(compared, index=(compared.index[0] + rows.start, *compared.index[1:]))


def _coarsest(weights: int) -> float:
    """Return the allowed RMS error of so many weights, divided by that of uniform rounding."""
    return float(min(COARSE, COARSE_LARGE + 5 / np.sqrt(weights)))


def derived(initializers: Mapping[str, Array], table: Mapping[str, Stored], checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the tensors that a graph may hold in addition to the checkpoint's weights, by name, computed again.

    These are buffers such as tables of sinusoids, scales in the shape of a lookup and its zero points, and the
    screening of a large projection. The scales themselves are verified by the weights that are dequantised with them.
    """
    known = {name: buffer.detach().numpy() for name, buffer in checkpoint.outline.named_buffers()}
    for name, values in initializers.items():
        stored = table.get(name)
        whole = None if stored is None else read_quantized(stored, values, initializers)
        if stored is not None and whole is not None:
            known |= _of_form(stored, whole)
    if set(INITIALIZERS) <= set(initializers):
        projection = projection_of(checkpoint.outline).weight
        name = next(name for name, each in checkpoint.outline.named_parameters() if each is projection)
        found = shorten(checkpoint.tensor(name).numpy())
        known |= initializers_of(found)
    return known


def _of_form(stored: Stored, whole: Quantized) -> dict[str, Array]:
    """Return the tensors that a quantised matrix has in addition to its values, by name."""
    form, scales = whole.form, whole.scales
    found = {str(stored.scales): scales, str(stored.lookup_scales): scales[..., None]}
    if stored.lookup_zeros is not None:
        found[stored.lookup_zeros] = np.full((*scales.shape, 1), {8: 0x80, 4: 0x88}[form.bits], np.uint8)
    if whole.zeros is not None:
        found[stored.zeros] = whole.zeros if form.kind == "qdq" else pack(whole.zeros)
    elif form.has_row_scales:
        found[stored.zeros] = np.zeros(len(scales), np.int8)
    if whole.columns is not None:
        inputs = whole.shape[1]
        found[stored.columns] = np.vstack([whole.columns[:-1], -sums_of_rows(whole)]).astype(np.float32)
        found[form.rest(inputs)] = rest_of(np.ones((1, inputs), np.float32), form)[0]
        found[stored.spread] = spread_of(form, inputs)
    return found


def projection_of(model: Model) -> Linear:
    """Return the linear layer that computes the logits, wherever it is in the model."""
    return next(each for each in model.modules() if isinstance(each, Linear) and each.tag == "projection")


def is_arithmetic(values: Array) -> bool:
    """Return whether a tensor can't be a weight: at most one number, or integers or booleans."""
    return values.size <= 1 or values.dtype in (np.int64, np.int32, np.bool_)


def finest(matrix: Array, form: Form) -> Array:
    """Return the smallest step of each weight (out, in) with which all of its row or block, and 0, are in range."""
    matrix = rest_of(matrix, form)
    block = form.block or matrix.shape[1]
    blocks = matrix.reshape(len(matrix), -1, block)
    if form.zeros:
        steps = (np.maximum(blocks.max(axis=2), 0) - np.minimum(blocks.min(axis=2), 0)) / 2**form.bits
    else:
        steps = np.abs(blocks).max(axis=2) / (2 ** (form.bits - 1) - 0.5)
    return rest_of(np.repeat(steps, block, axis=1), form)
