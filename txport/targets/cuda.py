"""The inputs and outputs of the graphs of the cuda target, whose state never leaves the device.

A cache has shape (rows, capacity, G x H) and the dtype of the bundle; all other ports are float32 or int64. The outputs
of a step are inputs of the next: `next_ids` can be bound to the memory of `input_ids`, `present_lengths` to
`past_lengths` and each `present` cache to its `past`. Therefore a greedy step needs no data from the host. Graphs
without weights move the state: they select rows, extend the capacity, and insert other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from txport.models.facts import LENGTH, Facts, Owner, StateTensor
from txport.targets.ports import (
    ADMIT_ROWS,
    ADMIT_SOURCES,
    ALL_ROWS,
    BATCH,
    BEAMS,
    COUNT,
    CROSS_ATTENTION,
    ENCODER,
    GROW_ROWS,
    GROW_SOURCES,
    IDS,
    INPUT_IDS,
    LOG_PROBS,
    LOGITS,
    MODEL,
    MORE,
    NEXT_IDS,
    PAST_LENGTHS,
    PREFILL,
    PRESENT_LENGTHS,
    ROOM,
    ROWS,
    SELECT_ROWS,
    SELECT_SOURCES,
    SOURCE,
    SOURCE_LENGTHS,
    STEP,
    TOKENS,
    Dim,
    Graph,
    Port,
    places_of,
    source_port,
)
from txport.targets.target import Target

WIDE = "float32"  # dtype of inputs and outputs that are not caches
ON_HOST = (COUNT, MORE)  # inputs in host memory
CAPTURED = (STEP,)  # graphs that are replayed as one CUDA graph
SELECTED, ADMITTED = "selected_rows", "admitted_rows"


def flat_dims(tensor: StateTensor, rows: Dim, length: Dim) -> tuple[Dim, ...]:
    """Return the dims (rows, length, G x H) of a state tensor."""
    return rows, length, math.prod(dim for dim in tensor.dims if isinstance(dim, int))


def _seq2seq(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the encoder, one step of the decoder, and the graphs that move the state of rows and of sources."""
    lengths = Port(SOURCE_LENGTHS, "int64", (BATCH,))
    encoder = Graph(
        ENCODER, "onnx/encoder.onnx", (source_port(facts, WIDE), lengths), _cross(facts, dtype, places_of(facts))
    )
    kept = _cross(facts, dtype, SOURCE)
    return encoder, _step(facts, dtype, (lengths, *kept)), *_of_rows(facts, dtype), *_of_sources(kept)


def _causal(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the graph that writes prompts into the caches, one step, and the graphs that move the state of rows."""
    inputs = (
        Port(INPUT_IDS, "int64", (BATCH, TOKENS)),
        Port(PAST_LENGTHS, "int64", (BATCH,)),  # the same in all rows
        *_own(facts, dtype, "past", BATCH),
    )
    prefill = Graph(PREFILL, "onnx/prefill.onnx", inputs, _own(facts, dtype, "present", BATCH))
    return prefill, _step(facts, dtype, ()), *_of_rows(facts, dtype)


def _encode(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    inputs = (Port(INPUT_IDS, "int64", (BATCH, TOKENS)), Port(SOURCE_LENGTHS, "int64", (BATCH,)))
    outputs = tuple(
        Port(each.name, WIDE, (BATCH, *(TOKENS if dim == LENGTH else dim for dim in each.dims)))
        for each in facts.outputs
    )
    return (Graph(MODEL, "onnx/model.onnx", inputs, outputs),)


def _step(facts: Facts, dtype: str, source: tuple[Port, ...]) -> Graph:
    """Return the graph of one step: one token per row; `source`: the inputs that the rows of a source share."""
    inputs = (
        Port(INPUT_IDS, "int64", (BATCH, BEAMS)),
        Port(PAST_LENGTHS, "int64", (ALL_ROWS,)),
        *source,
        *_own(facts, dtype, "past", ALL_ROWS),
        Port(COUNT, "int64", (1,)),  # 1 or more; on the host
    )
    outputs = [
        Port(LOG_PROBS, WIDE, (ALL_ROWS, COUNT)),
        Port(IDS, "int64", (ALL_ROWS, COUNT)),
        Port(NEXT_IDS, "int64", (BATCH, BEAMS)),  # the best token of each row
        Port(LOGITS, WIDE, (ALL_ROWS, facts.writes.size)),
        Port(PRESENT_LENGTHS, "int64", (ALL_ROWS,)),  # past_lengths + 1
        *_own(facts, dtype, "present", ALL_ROWS),
    ]
    if facts.attention is not None:  # the mean over the heads of that layer
        outputs.append(Port(CROSS_ATTENTION, WIDE, (ALL_ROWS, SOURCE), is_attention=True))
    return Graph(STEP, "onnx/step.onnx", inputs, tuple(outputs))


def _cross(facts: Facts, dtype: str, length: Dim) -> tuple[Port, ...]:
    return _caches(facts, dtype, "cross", "source", BATCH, length)


def _own(facts: Facts, dtype: str, prefix: str, rows: str) -> tuple[Port, ...]:
    return _caches(facts, dtype, prefix, "row", rows, ROOM)


def _caches(facts: Facts, dtype: str, prefix: str, owner: Owner, rows: str, length: Dim) -> tuple[Port, ...]:
    return tuple(
        Port(f"{prefix}.{each.layer}.{each.role}", dtype, flat_dims(each, rows, length), each)
        for each in facts.owned(owner)
    )


def _of_rows(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    return _moving(_own(facts, dtype, "past", ALL_ROWS), SELECT_ROWS, GROW_ROWS, ADMIT_ROWS)


def _of_sources(kept: Sequence[Port]) -> tuple[Graph, ...]:
    return _moving(kept, SELECT_SOURCES, GROW_SOURCES, ADMIT_SOURCES)


def _moving(kept: Sequence[Port], select: str, grow: str, admit: str) -> tuple[Graph, ...]:
    """Return graphs that select rows, append zeros to the capacity, and replace rows by those of other tensors."""

    def named(prefix: str, rows: Dim, extra: str = "") -> tuple[Port, ...]:
        return tuple(
            Port(f"{prefix}.{port.name}", port.dtype, (rows, f"{port.dims[1]}{extra}", port.dims[2])) for port in kept
        )

    rows = kept[0].dims[0]
    return (
        _memory(select, (*kept, Port(ROWS, "int64", (SELECTED,))), named("selected", SELECTED)),
        _memory(grow, (*kept, Port(MORE, "int64", (1,))), named("grown", rows, f" + {MORE}")),  # `more` on the host
        _memory(
            admit, (*kept, *named("others", ADMITTED), Port(ROWS, "int64", (ADMITTED,))), named("admitted", rows)
        ),  # may be bound onto the inputs
    )


def _memory(role: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Graph:
    return Graph(role, f"onnx/{role}.onnx", inputs, outputs)


CUDA = Target(
    name="cuda",
    summary="cuda: operators of ONNX Runtime on a GPU",
    contracts={"seq2seq": _seq2seq, "causal": _causal, "encode": _encode},
    precisions=("fp16", "bf16", "fp32", "int8", "int4"),
    exporter="txport.exporters.cuda.exporter:EXPORTER",
    replays="txport.proof.parity.replays.cuda:REPLAYS",
    on_gpu=True,
    stores="blocks",
    multiplies_in="fp16",  # its kernels of quantised weights
    provider="cuda",
    otherwise="give provider='cuda', or runtime='cuda-stand-in' to compute it on the CPU, slowly and in fp32",
    least_runtime="1.31.1",
)
