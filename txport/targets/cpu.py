"""The cpu target: fused operators of ONNX Runtime, and graphs made for speed.

Keys and values of the source are computed once, in the encoder. Those of the target are stored in buffers of a fixed
capacity, written in place by binding the `present` outputs to the memory of the `past` inputs. Lengths replace masks.
"""

from __future__ import annotations

from txport.models.facts import Facts
from txport.targets.ports import (
    ALIGN,
    ALL_ROWS,
    ASKED,
    BATCH,
    BEAMS,
    CAPACITY,
    COUNT,
    CROSS_ATTENTION,
    ENCODER,
    IDS,
    INPUT_IDS,
    LAST_PLACES,
    LOG_PROBS,
    LOGITS,
    LOGITS_AT,
    MODEL,
    PAST_LENGTHS,
    ROOM,
    SOURCE,
    SOURCE_LENGTHS,
    STEP,
    TOKENS,
    TOTAL,
    Graph,
    Port,
    caches,
    outputs_of,
    places_of,
    source_port,
)
from txport.targets.target import Target

LARGE_VOCABULARY = 4096  # from this size on, screening finds the best tokens faster than fp32 computes all logits
LIKELIEST = 8  # maximum number of tokens that screening returns

SEEK, PROJECT = "screening", "logits"  # its nodes with branches: candidates; all logits, for too many candidates


def screens(facts: Facts, precision: str) -> bool:
    """Return whether a step of the cpu target finds the best tokens (k < 0) without computing all logits."""
    is_large = facts.target is not None and facts.target.size >= LARGE_VOCABULARY
    return precision == "fp32" and is_large and facts.has_plain_logits


def _seq2seq(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the encoder and one step of the decoder."""
    made, kept = (
        caches(facts, dtype, lambda each: f"cross.{each.layer}.{each.role}", BATCH, {"source": dim})
        for dim in (places_of(facts), SOURCE)
    )
    inputs = (source_port(facts, dtype), Port(SOURCE_LENGTHS, "int32", (BATCH,)))
    encoder = Graph(ENCODER, "onnx/encoder.onnx", inputs, made)
    first = (
        Port(INPUT_IDS, "int64", (BATCH, BEAMS)),
        Port(PAST_LENGTHS, "int32", (ALL_ROWS,)),
        Port(CAPACITY, "int32", (1,)),
        Port(SOURCE_LENGTHS, "int32", (BATCH,)),
        *kept,
    )
    return encoder, _step(facts, dtype, first, ALL_ROWS, ALL_ROWS)


def _causal(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the graph of prompts and steps: new tokens of rows, whose earlier ones are in the caches."""
    first = (
        Port(INPUT_IDS, "int64", (BATCH, TOKENS)),
        Port(LAST_PLACES, "int32", (BATCH,)),  # earlier tokens of each row + sequence_length - 1
        # One token of each row: any number above `last_places`. Several: earlier tokens, which only a batch of one row
        # can have, + sequence_length.
        Port(TOTAL, "int32", (1,)),
        Port(LOGITS_AT, "int64", (ASKED,)),  # places in flattened `input_ids` of the tokens whose logits are computed
    )
    return (_step(facts, dtype, first, BATCH, ASKED),)


def _encode(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    inputs = (Port(INPUT_IDS, "int64", (BATCH, TOKENS)), Port(SOURCE_LENGTHS, "int32", (BATCH,)))
    return (Graph(MODEL, "onnx/model.onnx", inputs, outputs_of(facts, dtype)),)


def _step(facts: Facts, dtype: str, first: tuple[Port, ...], rows: str, asked: str) -> Graph:
    """Return the graph of a step after its `first` inputs; `rows`, `asked`: dims of its caches and of its logits."""
    inputs = [*first, *_own(facts, dtype, "past", rows)]
    outputs = [Port(LOGITS, dtype, (asked, facts.writes.size)), *_own(facts, dtype, "present", rows)]
    if facts.attention is not None:
        inputs.append(Port(ALIGN, "bool", (1,)))  # whether to output cross-attention weights; if not, they have no rows
        dims = (ALL_ROWS, SOURCE)  # the mean over the heads of that layer
        outputs.append(Port(CROSS_ATTENTION, dtype, dims, is_attention=True))
    # k > 0: the k best tokens; k < 0: -k, up to 8, with logits in place of log_probs; 0: none. On x86 without VNNI,
    # 8-bit sums may saturate: there, with a large vocabulary in fp32, k < 0 must not be used.
    inputs.append(Port(COUNT, "int64", (1,)))
    outputs += [Port(LOG_PROBS, dtype, (asked, COUNT)), Port(IDS, "int64", (asked, COUNT))]
    return Graph(STEP, "onnx/step.onnx", tuple(inputs), tuple(outputs))


def _own(facts: Facts, dtype: str, prefix: str, rows: str) -> tuple[Port, ...]:
    return caches(facts, dtype, lambda each: f"{prefix}.{each.layer}.{each.role}", rows, {"row": ROOM})


CPU = Target(
    name="cpu",
    summary="cpu: ONNX Runtime's fused operators",
    contracts={"seq2seq": _seq2seq, "causal": _causal, "encode": _encode},
    precisions=("fp32", "int8", "int4"),
    exporter="txport.exporters.cpu.exporter:EXPORTER",
    replays="txport.proof.parity.replays.cpu:REPLAYS",
    is_flat=True,
    chooses=True,
    on_request=True,
    calibrates=("int4",),
    provider="cpu",
    otherwise="export it with target='portable' for any other",
    least_runtime="1.24.1",  # the oldest version that txport supports
)
