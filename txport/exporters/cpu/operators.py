"""Attention by ONNX Runtime's operators: in PyTorch an equivalent computation, in a trace the operators.

In PyTorch, the parts of the model compute the attention, so the modules of the cpu target are their own reference.
Letters: see `ops`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.fused.parts import bias_of, cap_of, concatenation, float32, gelu, scale_of, sinks_of
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.symbols import Form, Symbol, Tracer
from txport.models.ops import attended, padding_mask
from txport.models.parts import Attention, additive

MASKED = -3e38  # MultiHeadAttention's default of -10000 does not mask padding if scores are large
MULTI_HEAD, GROUPED = "MultiHeadAttention", "GroupQueryAttention"
BIAS, SINKS = 10, 11  # inputs of GroupQueryAttention


def source_mask(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return the additive mask of positions at or beyond `lengths` (B,): (B, 1, 1, size)."""
    return additive(padding_mask(lengths, size), dtype)[:, None, None, :]


def multi_head_attention(
    part: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    distances: Tensor | None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Queries (B, T, N x H), keys and values (B, S, N x H) or (B, N, S, H), valid `lengths` (B,) -> (B, T, N x H).

    Fewer than N key/value heads are repeated, each N / G times in a row. An additive `mask` (B, 1, T, S) is given in
    place of lengths.

    `distances` (T, S): relative positions, required by a position bias; `bias` is computed from them once per trace.
    """
    if has_torch_function((query,)):
        bias = bias_of(part, distances) if bias is None else bias
        arguments = (part, query, key, value, lengths, distances, bias, mask)
        mixed: Tensor = handle_torch_function(multi_head_attention, (query,), *arguments)
        return mixed
    key, value = (x if x.dim() == 4 else part.split(x) for x in (key, value))
    key, value = (x[:, :: x.shape[1] // part.core.key_heads] for x in (key, value))
    if lengths is not None:
        mask = source_mask(lengths, key.shape[2], query.dtype)
    return attended(part, part.split(query), key, value, mask, distances).transpose(1, 2).flatten(2)


def grouped_query_attention(
    part: Attention,
    new: tuple[Tensor, ...],
    key: Tensor,
    value: Tensor,
    past: Tensor,
    last: Tensor,
    total: Tensor,
    distances: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of new tokens over buffers (R, G, M, H), to which their keys and values are written.

    `new`: concatenated query, key and value (R, T, (N + 2 G) x H), or three normalised tensors. `past` (R,): number of
    tokens in the buffers; `last` (R,): position of each row's last real token. Return (R, T, N x H) and the buffers.
    `distances` (R or 1, T, M): relative positions, required by a position bias; `bias` is computed from them once per
    trace.
    """
    if has_torch_function(new):
        bias = bias_of(part, distances) if bias is None else bias
        arguments = (part, new, key, value, past, last, total, distances, bias)
        found: tuple[Tensor, Tensor, Tensor] = handle_torch_function(grouped_query_attention, new, *arguments)
        return found
    sizes = [each.out_features for each in (part.query, part.key, part.value)]
    query, new_key, new_value = new if len(new) == len(sizes) else new[0].split(sizes, 2)
    places = past.long()[:, None] + torch.arange(query.shape[1])  # (R, T)
    key = written(key, part.turned(part.split(new_key), places), places)
    value = written(value, part.split(new_value), places)
    slots = torch.arange(key.shape[2])
    mask = additive(slots <= places[:, None, :, None], query.dtype)  # (R, 1, T, M)
    if part.window is not None:
        mask = part.window(mask, (slots - places[:, :, None])[:, None])
    distances = part.distances(slots, places[:, :, None]) if part.uses_distances else None  # (R, T, M)
    heads = part.turned(part.split(query), places)
    mixed: Tensor = part.core(heads, key, value, mask, distances)[0]
    return mixed.transpose(1, 2).flatten(2), key, value


class Kind(NamedTuple):
    """Kind of an attention operator: its optional features, with the names of the operator's attributes."""

    operator: str
    local_window_size: int = 0  # 0: no window
    softcap: float = 0.0  # 0: none
    do_rotary: bool = False
    head_sink: bool = False

    def __str__(self) -> str:
        size = self.local_window_size
        cap = self.softcap
        window = f"local_window_size {size}" if size else ""
        bend = f"softcap {cap:g}" if cap else ""
        flags = [name for name in ("do_rotary", "head_sink") if getattr(self, name)]
        settings = [*filter(None, (window, bend)), *flags]
        return " with ".join([self.operator, *([", ".join(settings)] if settings else [])])


def kind_of_part(part: Attention) -> Kind:
    """Return the kind of GroupQueryAttention that an attention requires."""
    cap = cap_of(part)
    size = 0 if part.window is None else part.window.size
    has_sinks = sinks_of(part) is not None
    return Kind(GROUPED, size, 0.0 if cap is None else float32(cap.limit), part.rotary is not None, has_sinks)


def kind_of_node(node: ir.Node) -> Kind:
    """Return the kind of a node."""
    attributes = node.attributes
    window = attributes.get_int("local_window_size", 0)
    cap = attributes.get_float("softcap", 0.0)
    has_sinks = any(each is not None for each in node.inputs[SINKS : SINKS + 1])
    return Kind(node.op_type, max(window, 0), float32(cap), attributes.get_int("do_rotary", 0) == 1, has_sinks)


def written(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """Return a buffer (R, G, M, H) with `new` heads (R, G, T, H) written at positions (R, T)."""
    cache = cache.clone()
    cache[torch.arange(len(places))[:, None], :, places] = new.transpose(1, 2)
    return cache


def write_at(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """Return a buffer (R, G, M, H) with heads (R, G, 1, H) of one token per row written at positions (R,)."""
    if has_torch_function((cache,)):
        found: Tensor = handle_torch_function(write_at, (cache,), cache, new, places)
        return found
    return written(cache, new, places.long()[:, None])


def _multi_head_attention(
    tracer: Tracer,
    part: Attention,
    query: Symbol,
    key: Symbol,
    value: Symbol,
    lengths: Symbol | None,
    distances: Symbol | None,
    bias: Symbol | None,
    mask: Symbol | None,
) -> Symbol:
    """Return ONNX Runtime's MultiHeadAttention; `MASKED` replaces its default mask value."""
    inputs = [query.value, key.value, value.value, None, None if lengths is None else lengths.value]
    added = mask if bias is None else FORMS["unsqueeze"](tracer, bias, 0)
    if bias is not None and mask is not None:
        added = FORMS["add"](tracer, added, mask)
    if added is not None:
        inputs.append(added.value)
    how: dict[str, object] = {"num_heads": part.core.heads, "mask_filter_value": MASKED, **scale_of(part)}
    mixed = tracer.op("multi_head_attention", MULTI_HEAD, inputs, MICROSOFT, **how)
    return tracer.given(mixed, query.examples)


def _grouped_query_attention(
    tracer: Tracer,
    part: Attention,
    new: tuple[Symbol, ...],
    key: Symbol,
    value: Symbol,
    past: Symbol,
    last: Symbol,
    total: Symbol,
    distances: Symbol | None,
    bias: Symbol | None,
) -> tuple[Symbol, Symbol, Symbol]:
    """Return ONNX Runtime's GroupQueryAttention, which writes to the buffers."""
    given = [each.value for each in new] if len(new) > 1 else [new[0].value, None, None]
    inputs = [*given, key.value, value.value, last.value, total.value]
    how: dict[str, object] = {"num_heads": part.core.heads, "kv_num_heads": part.core.key_heads, **scale_of(part)}
    if part.rotary is not None:
        inputs += [tracer.tensor(part.rotary.cos), tracer.tensor(part.rotary.sin)]
        how |= {"do_rotary": 1, "rotary_interleaved": int(part.rotary.pairing == "interleaved")}
    if (cap := cap_of(part)) is not None:
        how["softcap"] = float(cap.limit)
    if part.window is not None:
        how["local_window_size"] = part.window.size  # number of keys, including the query's own
    if bias is not None:
        added = bias.value if last is past else _first(tracer, bias.value, total)
        inputs += [None] * (BIAS - len(inputs)) + [added]
    if (sinks := sinks_of(part)) is not None:
        flat = tracer.op("sinks", "Reshape", [tracer.tensor(sinks), tracer.constant(np.array([-1]))])
        inputs += [None] * (SINKS - len(inputs)) + [flat]
    mixed, *grown = tracer.ops("grouped_query_attention", GROUPED, inputs, 3, MICROSOFT, **how)
    size = part.query.out_features
    attended = tuple(example.new_empty(*example.shape[:2], size) for example in new[0].examples)
    found = tracer.given(mixed, (attended[0], attended[1]))
    return found, tracer.given(grown[0], key.examples), tracer.given(grown[1], value.examples)


def _first(tracer: Tracer, bias: ir.Value, total: Symbol) -> ir.Value:
    """Slice a bias to the first `total` positions of a buffer, as the operator requires."""
    ends = [tracer.constant(np.array([number])) for number in (0, -1)]
    size = tracer.op("first/size", "Cast", [total.value], to=ir.DataType.INT64.value)
    return tracer.op("first", "Slice", [bias, ends[0], size, ends[1]])


def _write_at(tracer: Tracer, cache: Symbol, new: Symbol, places: Symbol) -> Symbol:
    """Return a ScatterND; other positions stay in place if output and input share memory."""
    heads = int(cache.examples[0].shape[1])
    rows = tracer.op("write/rows", "Range", [tracer.scalar(each) for each in (0, cache.shape[0], 1)])
    place = tracer.op("write/places", "Cast", [places.value], to=7)
    axes = tracer.constant(np.array([1, 2]))
    table = tracer.constant(np.zeros((1, heads, 1), np.int64))
    parts = [tracer.op("write/add", "Add", [tracer.op("write/row", "Unsqueeze", [each, axes]), table])
             for each in (rows, place)]  # fmt: skip
    own = tracer.constant(np.arange(heads)[None, :, None])
    zero = tracer.op("write/zero", "Mul", [parts[0], tracer.constant(np.array(0))])
    index = tracer.op(
        "write/index", "Concat", [parts[0], tracer.op("write/head", "Add", [zero, own]), parts[1]], axis=2
    )
    update = tracer.op("write/new", "Squeeze", [new.value, tracer.constant(np.array([2]))])  # (R, G, H)
    value = tracer.op("write", "ScatterND", [cache.value, index, update])
    return tracer.given(value, cache.examples)


FUSED_FORMS: dict[str, Form] = {
    **FORMS,
    "concatenated": concatenation,
    "gelu": gelu,
    "multi_head_attention": _multi_head_attention,
    "grouped_query_attention": _grouped_query_attention,
    "write_at": _write_at,
}
