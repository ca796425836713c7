"""Choice of the storage form of each matrix, by its purpose, the precision and the rows of a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx_ir as ir

from txport.bundles.forms import BLOCKS, DYNAMIC, PLAIN, ROWS, Form, blocks_of, with_columns
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.packed import PackedReader
from txport.checkpoints.weights.plan import first_names
from txport.exporters.cpu.columns import find_columns, has_columns
from txport.exporters.fused.packs import is_linear, parts_of
from txport.exporters.fused.rewrite import tables_of, tags_of
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.targets.ports import ENCODER, STEP

FLOAT = 4  # bytes
# Block sizes whose sums do not depend on the number of rows. 4 bits have exceptions: blocks of 32 on some processors,
# where the driver runs no row alone; and blocks of 16 on Arm, for matrices whose inputs are no multiple of 32.
ALIKE = (32, 16)
FEW_ROWS = 2  # up to this number of rows, the time is that of reading the weights
# Number of weights of a step that exceeds last-level caches. From memory, dynamic int8 of an encoder-decoder streams as
# fast as blocks and reads fewer scales; see docs/cpu-target.md.
STREAMED = 64_000_000
# Number of weights of a step up to which 8-bit blocks have 16 inputs, larger ones 32, unless the inputs are `EVEN`.
FINE = 200_000_000
NO_COLUMNS: Mapping[str, tuple[int, ...]] = {}
NO_FORMS: Mapping[str, Form] = {}
NO_PACKED: Mapping[str, PackedReader] = {}
# Linear layers of the encoder that are stored in 4 bits to save space, although the encoder has many rows: those that
# save the most bytes for the time lost.
FOUR_BITS = frozenset({"ffn_out", "cross_key", "cross_value"})
# Linear layers of a causal model that int4 stores in 8 bits: those that gain most for their bytes (docs/few-bits.md).
EIGHT_BITS = frozenset({"query", "key", "value", "attention_out", "projection"})
# Linear layers whose inputs are of about the same size, as those are that are smoothed: in 8-bit blocks of 32 they lose
# about as little as in blocks of 16, which take up to a half more time (docs/few-bits.md).
EVEN = frozenset({"attention_out", "projection"})


def rows_of(facts: Facts, precision: str, rows: int | None) -> int | None:
    """Return for how many rows the forms are if an export is asked for `rows`; None: for any, as in `choose_form`.

    In int8, a causal model has the default forms for few rows, too: nodes beside a product take longer than the product
    of one row, and blocks need none (docs/cpu-target.md).
    """
    return None if facts.is_causal and precision == "int8" and rows is not None and rows <= FEW_ROWS else rows


def forms_of(
    checkpoint: Checkpoint, manifest: Manifest, models: Mapping[str, ir.Model], chosen: Mapping[str, Form] = NO_FORMS
) -> dict[str, Form]:
    """Return initializer -> form for the graphs of an export; see `choose_forms`."""
    may = has_columns(manifest.facts, manifest.rows) and not manifest.weightless
    return choose_forms(
        models,
        manifest.precision,
        manifest.rows,
        tags=tags_of(checkpoint.outline),
        tables=tables_of(checkpoint.outline),
        chosen=chosen,
        columns=find_columns(checkpoint) if may else {},
        packed=checkpoint.packed,
        hears=isinstance(manifest.facts.reads, Features),
        even=_even(checkpoint) if manifest.smoothing else set(),
    )


def _even(checkpoint: Checkpoint) -> set[str]:
    """Return the weights of a smoothed model whose inputs are of about the same size."""
    read = {name for each in checkpoint.smoothing for name in each.read_by}
    tags = tags_of(checkpoint.outline)
    names = first_names(checkpoint.outline)
    return {name for name, first in names.items() if first in read or tags.get(name) in EVEN}


def choose_form(
    shape: Sequence[int],
    precision: str,
    rows: int | None,
    *,
    role: str,
    small: bool = False,
    wide: bool = False,
    weights: int = 0,
    causal: bool = False,
    hears: bool = False,
    columns: tuple[int, ...] = (),
    even: bool = False,
) -> Form:
    """Return the form for a matrix (out, in) of one graph: the fastest for a step of `rows` rows.

    `rows` None: the fastest form for which no row depends on the others or on their number, and that keeps the outputs:
    a few inputs of a `causal` model are much larger than the others, so one scale for all of them would drop digits. A
    model that `hears` has steps of few rows, and reads its sources' keys and values in each, which takes longer than
    its products; so these are in blocks, which have no other nodes. `small`: prefer less space to less time. `wide`: in
    int4, it has 8 bits. `weights`: their number in a step. `columns`: its inputs to keep in fp32. `even`: they are of
    about the same size.
    """
    block = next((size for size in (ALIKE if rows is None else BLOCKS) if shape[1] % size == 0), None)
    fine = min(ALIKE) if block and rows is None and weights <= FINE else block
    if block and precision == "int4" and wide:
        return blocks_of(8, block)
    if block and precision == "int4" and (role == STEP or small):
        return blocks_of(4, block, zeros=True)
    if rows is None and block and hears and role == STEP:
        return blocks_of(8, block)
    if rows is None:
        return blocks_of(8, block if even and block else fine) if fine and causal else with_columns(columns)
    if block and role == STEP and rows <= FEW_ROWS and weights <= STREAMED:
        return blocks_of(8, block)
    return with_columns(columns) if causal and columns else DYNAMIC


def choose_forms(
    models: Mapping[str, ir.Model],
    precision: str,
    rows: int | None,
    *,
    tags: Mapping[str, str],
    tables: Collection[str],
    chosen: Mapping[str, Form] = NO_FORMS,
    columns: Mapping[str, tuple[int, ...]] = NO_COLUMNS,
    packed: Mapping[str, PackedReader] = NO_PACKED,
    hears: bool = False,
    even: Collection[str] = (),
) -> dict[str, Form]:
    """Return initializer -> form. A weight that several nodes or graphs read has one form, suitable for all of them.

    A linear layer without a tag stays in fp32: nothing is known of the values that it reads.
    `tags`: weight -> tag of its linear layer; `tables`: embedding tables; `chosen`: weight -> the form that it gets
    instead, together with the weights that it is packed with; `columns`: weight -> its inputs to keep in fp32;
    `packed`: those that another tool has quantised, which int4 takes as they are, beside 8 bits of the others. `even`:
    those whose inputs are of about the same size. All names are the checkpoint's.
    """
    is_taken = precision == "int4" and bool(packed)
    precision = "int8" if is_taken else precision
    forms: dict[str, Form] = {}
    weights = _weights_of_step(models[STEP]) if STEP in models else 0
    causal = STEP in models and ENCODER not in models
    choose = partial(choose_form, precision=precision, rows=rows, weights=weights, causal=causal, hears=hears)
    wide = {*tables, *in_eight_bits(tags)} if causal else set()
    for role, model in models.items():
        reads = Counter(node.inputs[1] for node in filter(is_linear, model.graph))
        for weight, count in reads.items():
            assert weight is not None
            parts = parts_of(weight)
            small = all(tags.get(part) in FOUR_BITS for part in parts)
            is_wide = all(part in wide for part in parts)
            own: dict[str, Any] = {"columns": columns.get(parts[0], ()), "even": all(part in even for part in parts)}
            form = choose(_shape(weight), role=role, small=small, wide=is_wide, **own)
            if count > 1:
                form = to_share(form, _shape(weight)[1])
            if is_taken and all(part in packed for part in parts):
                form = blocks_of(4, max(ALIKE) if rows is None else packed[parts[0]].group, zeros=True)
            forms[str(weight.name)] = form if all(part in tags for part in parts) else PLAIN
    for value in (each for model in models.values() for each in model.graph.initializers.values()):
        name = str(value.name)
        if name in tables:
            form = forms.setdefault(name, choose(_shape(value), role=STEP, wide=name in wide))
            forms[name] = ROWS if form == DYNAMIC else replace(form, zeros=False)  # rows are looked up without any
        if name in forms:
            forms[name] = next((chosen[part] for part in parts_of(value) if part in chosen), forms[name])
    return forms


def in_eight_bits(tags: Mapping[str, str]) -> set[str]:
    """Return the weights of a causal model that int4 stores in 8 bits: `EIGHT_BITS` and half of the `ffn_out`.

    These are those of the first and last eighth of the layers and of each third one between, as in Q4_K_M of llama.cpp.
    """
    ends = [name for name, tag in tags.items() if tag == "ffn_out"]
    eighth = len(ends) // 8
    middle = range(eighth, len(ends) - eighth)
    half = [name for at, name in enumerate(ends) if at not in middle or (at - eighth) % 3 == 2]
    return {*half, *(name for name, tag in tags.items() if tag in EIGHT_BITS)}


def to_share(form: Form, inputs: int) -> Form:
    """Return the form of a matrix with this number of inputs that several products of one graph read.

    On x86 without VNNI, ONNX Runtime 1.31 loads no graph in which two of its other 8-bit products share their weights.
    """
    block = next((size for size in ALIKE if inputs % size == 0), None)
    return form if form.kind == "blocks" else PLAIN if block is None else blocks_of(8, block)


def wider_forms(form: Form, columns: tuple[int, ...], inputs: int, *, shared: bool = False) -> list[Form]:
    """Return the forms that a matrix with this form and number of inputs may get instead, in ascending size.

    No form shares a scale between rows. `columns`: its largest inputs. `shared`: several products of a graph read it.
    """
    blocks = [blocks_of(8, size) for size in ALIKE if inputs % size == 0]
    eight = [*([] if shared else [with_columns(columns)]), *blocks]
    return [each for each in (*eight, PLAIN) if each != form and size_of(each, 1, inputs) > size_of(form, 1, inputs)]


def size_of(form: Form, out: int, inputs: int) -> int:
    """Return the bytes of a matrix (out, in) with its scales and columns in fp32."""
    values = out * inputs * form.bits // 8
    if form == PLAIN:
        return values
    if form.kind == "blocks":
        blocks = inputs // (form.block or 1)
        return values + FLOAT * out * blocks + (out * -(-blocks // 2) if form.zeros else 0)
    return values + FLOAT * out * (1 + (len(form.columns) + 1 if form.columns else 0))


def _weights_of_step(model: ir.Model) -> int:
    """Return the number of weights in the linear layers of a step, each counted once."""
    weights = {str(node.inputs[1].name): node.inputs[1] for node in model.graph if is_linear(node) and node.inputs[1]}
    return sum(math.prod(_shape(each)) for each in weights.values())


def _shape(weight: ir.Value) -> Sequence[int]:
    assert weight.const_value is not None
    return weight.const_value.shape.numpy()
