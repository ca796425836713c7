"""The cpu target: fused operators of ONNX Runtime, and graphs made for speed.

Keys and values of the source are computed once, in the encoder. Those of the target are stored in buffers of a fixed
capacity, written in place by binding the `present` outputs to the memory of the `past` inputs. Lengths replace masks.
"""

from __future__ import annotations

from txport.models.facts import Facts
from txport.targets.ports import (
    ALIGN,
    ALL_ROWS,
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
    MODEL,
    PAST_LENGTHS,
    PREFILL,
    PROMPT_SIZE,
    ROOM,
    SOURCE,
    SOURCE_LENGTHS,
    STEP,
    TOKENS,
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
    return encoder, _step(facts, dtype, (Port(SOURCE_LENGTHS, "int32", (BATCH,)), *kept))


def _causal(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the graph that writes prompts into the caches, and one step."""
    inputs = (
        Port(INPUT_IDS, "int64", (BATCH, TOKENS)),
        Port(LAST_PLACES, "int32", (BATCH,)),  # prompt_size - 1, of each row
        Port(PROMPT_SIZE, "int32", (1,)),  # sequence_length + earlier tokens, which only a batch of one row can have
        *_own(facts, dtype, "past", BATCH),
    )
    prefill = Graph(PREFILL, "onnx/prefill.onnx", inputs, _own(facts, dtype, "present", BATCH))
    return prefill, _step(facts, dtype, ())


def _encode(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    inputs = (Port(INPUT_IDS, "int64", (BATCH, TOKENS)), Port(SOURCE_LENGTHS, "int32", (BATCH,)))
    return (Graph(MODEL, "onnx/model.onnx", inputs, outputs_of(facts, dtype)),)


def _step(facts: Facts, dtype: str, source: tuple[Port, ...]) -> Graph:
    """Return the graph of one step: one token per row; `source`: the inputs that the rows of a source share."""
    inputs = [
        Port(INPUT_IDS, "int64", (BATCH, BEAMS)),
        Port(PAST_LENGTHS, "int32", (ALL_ROWS,)),
        Port(CAPACITY, "int32", (1,)),
        *source,
        *_own(facts, dtype, "past", ALL_ROWS),
    ]
    outputs = [Port(LOGITS, dtype, (ALL_ROWS, facts.writes.size)), *_own(facts, dtype, "present", ALL_ROWS)]
    if facts.attention is not None:
        inputs.append(Port(ALIGN, "bool", (1,)))  # whether to output cross-attention weights; if not, they have no rows
        dims = (ALL_ROWS, SOURCE)  # the mean over the heads of that layer
        outputs.append(Port(CROSS_ATTENTION, dtype, dims, is_attention=True))
    # k > 0: the k best tokens; k < 0: -k, up to 8, with logits in place of log_probs; 0: none. On x86 without VNNI,
    # 8-bit sums may saturate: there, with a large vocabulary in fp32, k < 0 must not be used.
    inputs.append(Port(COUNT, "int64", (1,)))
    outputs += [Port(LOG_PROBS, dtype, (ALL_ROWS, COUNT)), Port(IDS, "int64", (ALL_ROWS, COUNT))]
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
