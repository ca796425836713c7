"""Operators of the cuda target: in PyTorch an equivalent computation, in a trace the operators.

In PyTorch, the parts of the model compute the attention, so the modules of the target are their own reference. No node
reads a shape, which would be on the host: position and row numbers are counted on the device (`places`).
Letters: see `ops`.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from txport.exporters.cuda.positions import PLACE_FORMS
from txport.exporters.cuda.products import matmul
from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.fused.parts import bias_of, cap_of, concatenation, float32, gelu, scale_of
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.forms.arithmetic import to
from txport.exporters.tracing.forms.common import cast, code_of
from txport.exporters.tracing.symbols import Form, Symbol, Tracer
from txport.exporters.tracing.trace import SIZES
from txport.models.parts import Attention, additive
from txport.targets.ports import COUNT

ATTENTION, ROTARY, WRITE = "Attention", "RotaryEmbedding", "TensorScatter"


def attention(
    part: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    distances: Tensor | None = None,
    causal: bool = False,
    added: Tensor | None = None,
) -> Tensor:
    """Queries (B, T, N x H), keys and values (B, L, G x H), valid `lengths` (B,) -> (B, T, N x H).

    `causal`: the queries are the last valid positions and do not attend to later ones. `distances` (T, L) or (B, T, L):
    relative positions key - query, required by a position bias or a window; a trace computes `added`, the sum of both,
    once.
    """
    if has_torch_function((query,)):
        added = added_of(part, distances, query.dtype)
        arguments = (part, query, key, value, lengths, distances, causal, added)
        mixed: Tensor = handle_torch_function(attention, (query,), *arguments)
        return mixed
    places = torch.arange(key.shape[1])
    size = query.shape[1]
    ends = lengths[:, None, None]
    if causal:
        ends = ends - size + 1 + torch.arange(size)[:, None]  # (B, T, 1)
    mask = additive(places < ends, query.dtype)[:, None]  # (B, 1, T or 1, L)
    if part.window is not None and distances is not None:
        mask = part.window(mask, distances if distances.dim() == 2 else distances[:, None])
    heads = (part.split(each) for each in (query, key, value))
    attended: Tensor = part.core(*heads, mask, distances if part.uses_distances else None)[0]
    return attended.transpose(1, 2).flatten(2)


def added_of(part: Attention, distances: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the position bias plus the window mask of an attention, (B or 1, N or 1, T, L), or None."""
    if distances is None:
        return None
    rows = distances[None] if distances.dim() == 2 else distances  # (B or 1, T, L)
    bias = bias_of(part, rows)
    if part.window is None:
        return bias
    hidden = additive(rows > -part.window.size, dtype)[:, None]
    return hidden if bias is None else bias + hidden


def rotated(part: Attention, x: Tensor, places: Tensor) -> Tensor:
    """Apply the rotary embedding to queries or keys (B, T, N x H) at positions (B, T)."""
    if has_torch_function((x,)):
        turned: Tensor = handle_torch_function(rotated, (x,), part, x, places)
        return turned
    return part.turned(part.split(x), places).transpose(1, 2).flatten(2)


def write_at(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """Return buffers (R, M, D) with `new` (R, T, D) written from each row's position (R,) on."""
    if has_torch_function((cache,)):
        found: Tensor = handle_torch_function(write_at, (cache,), cache, new, places)
        return found
    cache = cache.clone()
    cache[torch.arange(len(cache))[:, None], places[:, None] + torch.arange(new.shape[1])] = new
    return cache


def likeliest(scores: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the k = `count` (1,) largest of scores (R, V): scores and tokens, (R, k) each."""
    if has_torch_function((scores,)):
        found: tuple[Tensor, Tensor] = handle_torch_function(likeliest, (scores,), scores, count)
        return found
    best = scores.topk(int(count), dim=1)
    return best.values, best.indices


class Kind(NamedTuple):
    """Kind of an attention operator: its optional features."""

    operator: str
    is_causal: bool = False
    attn_mask: bool = False
    softcap: float = 0.0  # 0: none

    def __str__(self) -> str:
        cap = f"softcap {self.softcap:g}" if self.softcap else ""
        flags = [name for name in ("is_causal", "attn_mask") if getattr(self, name)]
        settings = [*flags, *([cap] if cap else [])]
        return " with ".join([self.operator, *([", ".join(settings)] if settings else [])])


def kind_of_part(part: Attention, *, causal: bool = False) -> Kind:
    """Return the kind of operator that an attention requires."""
    cap = cap_of(part)
    adds = part.window is not None or part.uses_distances
    return Kind(ATTENTION, causal, adds, 0.0 if cap is None else float32(cap.limit))


def kind_of_node(node: ir.Node) -> Kind:
    """Return the kind of a node."""
    attributes = node.attributes
    masked = len(node.inputs) > 3 and node.inputs[3] is not None
    return Kind(
        node.op_type, attributes.get_int("is_causal", 0) == 1, masked, float32(attributes.get_float("softcap", 0.0))
    )


def _attention(
    tracer: Tracer,
    part: Attention,
    query: Symbol,
    key: Symbol,
    value: Symbol,
    lengths: Symbol,
    distances: Symbol | None,
    causal: bool,
    added: Symbol | None,
) -> Symbol:
    inputs = [query.value, key.value, value.value, None if added is None else added.value, None, None, lengths.value]
    how: dict[str, Any] = {
        "q_num_heads": part.core.heads,
        "kv_num_heads": part.core.key_heads,
        "is_causal": int(causal),
        **scale_of(part),
    }
    if (cap := cap_of(part)) is not None:
        how["softcap"] = float(cap.limit)
    return tracer.given(tracer.op("attention", ATTENTION, inputs, **how), query.examples)


def _rotated(tracer: Tracer, part: Attention, x: Symbol, places: Symbol) -> Symbol:
    assert part.rotary is not None
    tables = [tracer.tensor(part.rotary.cos), tracer.tensor(part.rotary.sin)]
    how: dict[str, Any] = {
        "interleaved": int(part.rotary.pairing == "interleaved"),
        "num_heads": int(x.examples[0].shape[2]) // part.head_size,
        **({"rotary_embedding_dim": part.rotary.size} if part.rotary.size < part.head_size else {}),
    }
    return tracer.given(tracer.op("rotary", ROTARY, [x.value, *tables, places.value], **how), x.examples)


def _write_at(tracer: Tracer, cache: Symbol, new: Symbol, places: Symbol) -> Symbol:
    value = tracer.op("write", WRITE, [cache.value, new.value, places.value], axis=1)
    return tracer.given(value, cache.examples)


def _likeliest(tracer: Tracer, scores: Symbol, count: Symbol) -> tuple[Symbol, Symbol]:
    values = tracer.ops("likeliest", "TopK", [scores.value, count.value], 2)
    found = [each.new_zeros(len(each), size) for each, size in zip(scores.examples, SIZES[COUNT], strict=True)]
    return tracer.given(values[0], (found[0], found[1])), tracer.given(values[1], (found[0].long(), found[1].long()))


def _linear(tracer: Tracer, x: Symbol, weight: Symbol | Tensor, bias: Symbol | Tensor | None = None) -> Symbol:
    """Return a FusedMatMul with the untransposed weight of the checkpoint, for any dims, and an Add of the bias."""
    matrix = tracer.as_symbol(weight).value
    value = tracer.op("linear/product", "FusedMatMul", [x.value, matrix], MICROSOFT, transB=1)
    found = tracer.symbol(value, torch.nn.functional.linear, x, weight)
    if bias is None:
        return found
    return tracer.given(tracer.op("linear", "Add", [value, tracer.as_symbol(bias).value]), found.examples)


def _silu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    return tracer.given(tracer.op("silu", "QuickGelu", [x.value], MICROSOFT, alpha=1.0), x.examples)


def _softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: object = None) -> Symbol:
    """Return the softmax in fp32. A Cast or Max before it prevents fusion with a mask, which needs another library."""
    x = x if dtype is None else to(tracer, x, dtype)
    lowest = tracer.constant(np.array(np.finfo(np.float32).min, np.float32))
    narrow = x.dtype != torch.float32
    value = cast(tracer, "softmax/wide", x, torch.float32) if narrow else tracer.op("max", "Max", [x.value, lowest])
    value = tracer.op("softmax", "Softmax", [value], axis=dim)
    found = tracer.given(value, (x.examples[0].float(), x.examples[1].float()))
    return tracer.given(cast(tracer, "softmax/narrow", found, x.dtype), x.examples)


def _log_softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: object = None) -> Symbol:
    """Return the log-softmax in fp32: there is no kernel for bf16."""
    x = x if dtype is None else to(tracer, x, dtype)
    wide = cast(tracer, "log_softmax/wide", x, torch.float32)
    value = tracer.op("log_softmax", "LogSoftmax", [wide], axis=dim)
    found = tracer.given(value, (x.examples[0].float(), x.examples[1].float()))
    return (
        found
        if x.dtype == torch.float32
        else tracer.given(cast(tracer, "log_softmax/narrow", found, x.dtype), x.examples)
    )


def _times(tracer: Tracer, x: Any, y: Any) -> Symbol:
    """Return a product; in fp32 if the dtype does not represent a factor exactly, since all results would be biased."""
    number, tensor = (x, y) if isinstance(x, float) else (y, x)
    narrow = isinstance(tensor, Symbol) and tensor.dtype in (torch.float16, torch.bfloat16)
    if not (narrow and isinstance(number, float)) or float(torch.tensor(number, dtype=tensor.dtype)) == number:
        product: Symbol = FORMS["mul"](tracer, x, y)
        return product
    wide = [cast(tracer, "mul/wide", tensor, torch.float32), tracer.constant(np.array(number, np.float32))]
    value = tracer.op("mul/narrow", "Cast", [tracer.op("mul", "Mul", wide)], to=code_of(tensor.dtype))
    return tracer.symbol(value, operator.mul, x, y)


CUDA_FORMS: dict[str, Form] = {
    **FORMS,
    "matmul": matmul,
    "mul": _times,
    "rmul": _times,
    **PLACE_FORMS,
    "concatenated": concatenation,
    "attention": _attention,
    "rotated": _rotated,
    "write_at": _write_at,
    "likeliest": _likeliest,
    "linear": _linear,
    "gelu": gelu,
    "silu": _silu,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
