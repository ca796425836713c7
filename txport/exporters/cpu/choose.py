"""Which form each matrix of the graphs takes, by what it does, the precision and the rows of a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from torch import nn

from txport.bundles.forms import BLOCKS, DYNAMIC, INVARIANT, PLAIN, ROWS, Form, blocks_of
from txport.bundles.ports import STEP
from txport.exporters.fused.packs import is_linear, parts_of
from txport.exporters.trace import weight_names
from txport.models.parts import Linear

ALIKE = (32, 16)  # blocks whose sums, in 4 bits, do not depend on how many rows there are
FEW_ROWS = 2  # up to here, reading weights is all the work
# Weights of a step, beyond what last-level caches hold. From memory, dynamic int8 streams as fast as blocks and has
# fewer scales to read; see docs/cpu-target.md.
STREAMED = 64_000_000
# Linear maps of the encoder, which works on many rows at once, that are held in 4 bits to save space: those with the
# most bytes for the time that they lose.
FOUR_BITS = frozenset({"ffn_out", "cross_key", "cross_value"})


def tags_of(module: nn.Module) -> dict[str, str]:
    """What each linear map of a module is for: the name that a trace gives its weight -> its tag."""
    names = weight_names(module)
    return {names[id(each.weight)]: each.tag for each in module.modules() if isinstance(each, Linear)}


def choose_form(
    shape: Sequence[int], precision: str, rows: int | None, *, role: str, small: bool = False, streamed: bool = False
) -> Form:
    """The form for a matrix (out, in) of one graph: the fastest for a step of so many rows.

    For None, the fastest in which no row depends on the others, nor on how many there are. `small` says that space
    counts more than time, `streamed` that a step reads more than caches hold.
    """
    block = next((size for size in (ALIKE if rows is None else BLOCKS) if shape[1] % size == 0), None)
    if block and precision == "int4" and (role == STEP or small):
        return blocks_of(4, block)
    if rows is None:
        return INVARIANT
    if block and role == STEP and rows <= FEW_ROWS and not streamed:
        return blocks_of(8, block)
    return DYNAMIC


def choose_forms(
    models: Mapping[str, ir.Model],
    precision: str,
    rows: int | None,
    *,
    tags: Mapping[str, str],
    tables: Collection[str],
    keep: Collection[str] = (),
) -> dict[str, Form]:
    """Initializer -> form. A weight that several nodes or graphs read has one form, fit for all of them.

    `tags` say what linear maps are for, `tables` which weights tokens are looked up in, by the checkpoint's names.
    Those named in `keep` stay in fp32, and what is packed with them.
    """
    forms: dict[str, Form] = {}
    kept: set[str] = set()
    streamed = _weights_of_step(models[STEP]) > STREAMED if STEP in models else False
    for role, model in models.items():
        for node in filter(is_linear, model.graph):
            weight = node.inputs[1]
            assert weight is not None
            small = all(tags[part] in FOUR_BITS for part in parts_of(weight))
            forms[str(weight.name)] = choose_form(
                _shape(weight), precision, rows, role=role, small=small, streamed=streamed
            )
    for value in (each for model in models.values() for each in model.graph.initializers.values()):
        name = str(value.name)
        if name in tables:
            form = forms.setdefault(name, choose_form(_shape(value), precision, rows, role=STEP, streamed=streamed))
            forms[name] = ROWS if form == DYNAMIC else form
        kept.update([name] if any(part in keep for part in parts_of(value)) else [])
    return {name: PLAIN if name in kept else form for name, form in forms.items()}


def _weights_of_step(model: ir.Model) -> int:
    """How many weights a step multiplies with, each once."""
    weights = {str(node.inputs[1].name): node.inputs[1] for node in model.graph if is_linear(node) and node.inputs[1]}
    return sum(math.prod(_shape(each)) for each in weights.values())


def _shape(weight: ir.Value) -> Sequence[int]:
    assert weight.const_value is not None
    return weight.const_value.shape.numpy()
