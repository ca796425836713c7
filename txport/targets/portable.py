"""The portable target: standard operators, and graphs that Hugging Face Optimum and transformers.js load unmodified.

Those depend on the names and the order of the ports.
"""

from __future__ import annotations

from collections.abc import Callable

from txport.models.facts import Facts, Owner, StateTensor
from txport.targets.ports import (
    ATTENTION_MASK,
    BATCH,
    CROSS_ATTENTION,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LOGITS,
    MODEL,
    PAST,
    PAST_SOURCE,
    PAST_TARGET,
    POSITION_IDS,
    ROWS,
    SELECT,
    SOURCE,
    TARGET,
    TOKEN_TYPE_IDS,
    TOKENS,
    Dim,
    Graph,
    Port,
    caches,
    outputs_of,
    places_of,
    source_port,
)
from txport.targets.target import Target

# Attention of the portable driver sums over this number of source positions at a time, and over the rest separately;
# over more in fp16, for which ONNX Runtime has no softmax on the CPU and uses a ReduceSum.
TOGETHER = {"float32": 4, "float16": 8}


def _seq2seq(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return the encoder, the decoder, and the graph that selects rows of a state; features have no mask."""
    masks = facts.masks_source
    encoder = Graph(
        ENCODER,
        "onnx/encoder_model.onnx",
        (source_port(facts, dtype), *([Port(ATTENTION_MASK, "int64", (BATCH, SOURCE))] if masks else [])),
        (Port(LAST_HIDDEN_STATE, dtype, (BATCH, places_of(facts), facts.width)),),
    )
    kept = (
        Port(ENCODER_HIDDEN_STATES, dtype, (BATCH, SOURCE, facts.width)),
        *([Port(ENCODER_ATTENTION_MASK, "int64", (BATCH, SOURCE))] if masks else []),
        *caches(facts, dtype, _seq2seq_name("past_key_values"), BATCH, {"row": PAST_TARGET, "source": PAST_SOURCE}),
    )
    grown: dict[Owner, Dim] = {"row": f"{PAST_TARGET} + {TARGET}", "source": SOURCE}
    outputs = [
        Port(LOGITS, dtype, (BATCH, TARGET, facts.writes.size)),
        *caches(facts, dtype, _seq2seq_name("present"), BATCH, grown),
    ]
    if facts.attention is not None:  # named as Hugging Face names those of all layers
        name = f"{CROSS_ATTENTION}s.{facts.attention.layer}"
        dims = (BATCH, facts.attention.heads, TARGET, SOURCE)
        outputs.append(Port(name, dtype, dims, is_attention=True))
    inputs = (Port(INPUT_IDS, "int64", (BATCH, TARGET)), *kept)
    decoder = Graph(DECODER, "onnx/decoder_model_merged.onnx", inputs, tuple(outputs))
    return encoder, decoder, _select(kept)


def _causal(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    """Return one graph for prompts and steps, and the graph that selects rows of a state."""
    mask = Port(ATTENTION_MASK, "int64", (BATCH, f"{PAST} + {TOKENS}"))
    past = caches(facts, dtype, _causal_name("past_key_values"), BATCH, {"row": PAST})
    present = caches(facts, dtype, _causal_name("present"), BATCH, {"row": f"{PAST} + {TOKENS}"})
    inputs = (Port(INPUT_IDS, "int64", (BATCH, TOKENS)), mask, Port(POSITION_IDS, "int64", (BATCH, TOKENS)), *past)
    logits = Port(LOGITS, dtype, (BATCH, TOKENS, facts.writes.size))
    kept = (Port(ATTENTION_MASK, "int64", (BATCH, PAST)), *past)
    return Graph(DECODER, "onnx/model.onnx", inputs, (logits, *present)), _select(kept)


def _encode(facts: Facts, dtype: str) -> tuple[Graph, ...]:
    tokens = (BATCH, TOKENS)
    names = (INPUT_IDS, ATTENTION_MASK, *([TOKEN_TYPE_IDS] if facts.has_token_types else []))
    inputs = tuple(Port(name, "int64", tokens) for name in names)
    return (Graph(MODEL, "onnx/model.onnx", inputs, outputs_of(facts, dtype)),)


def _seq2seq_name(prefix: str) -> Callable[[StateTensor], str]:
    sides = {"row": "decoder", "source": "encoder"}
    return lambda each: f"{prefix}.{each.layer}.{sides[each.owner]}.{each.role}"


def _causal_name(prefix: str) -> Callable[[StateTensor], str]:
    return lambda each: f"{prefix}.{each.layer}.{each.role}"


def _select(kept: tuple[Port, ...]) -> Graph:
    picked = tuple(Port(f"selected.{port.name}", port.dtype, ("selected_rows", *port.dims[1:])) for port in kept)
    return Graph(SELECT, "onnx/select_rows.onnx", (*kept, Port(ROWS, "int64", ("selected_rows",))), picked)


PORTABLE = Target(
    name="portable",
    summary="portable: standard ONNX operators",
    contracts={"seq2seq": _seq2seq, "causal": _causal, "encode": _encode},
    precisions=("fp32", "fp16", "int8", "int4"),
    exporter="txport.exporters.portable.exporter:EXPORTER",
    replays="txport.proof.parity.replays.portable:REPLAYS",
    is_standard=True,
    stores="qdq",
)
