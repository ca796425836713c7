"""The only place that names the inputs and outputs of a graph: exporters, checks, runtimes and tests read it.

The portable contract is the one that Hugging Face Optimum and transformers.js load unmodified; the order
of the ports is part of it. The cpu contract is made for speed: the source's keys and values are computed
once, in the encoder; the target's lie in buffers of a fixed capacity, written in place by binding the
`present` outputs to the memory of the `past` inputs; and lengths stand in place of masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txport.models.config import TransformerConfig

Dim = str | int

LARGE_VOCABULARY = 4096  # from here on, screening for the likeliest tokens takes less time than all logits in fp32
LIKELIEST = 8  # so many of them can be asked for

ENCODER = "encoder"
DECODER = "decoder"
SELECT = "select"
STEP = "step"

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
LAST_HIDDEN_STATE = "last_hidden_state"
ENCODER_HIDDEN_STATES = "encoder_hidden_states"
ENCODER_ATTENTION_MASK = "encoder_attention_mask"
SOURCE_LENGTHS = "source_lengths"
PAST_LENGTHS = "past_lengths"
CAPACITY = "cache_capacity"
LOGITS = "logits"
COUNT = "k"
LOG_PROBS, IDS = "log_probs", "ids"
ALIGN = "align"
CROSS_ATTENTION = "cross_attention"
ROWS = "rows"

BATCH, SOURCE, TARGET = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
PAST_TARGET, PAST_SOURCE = "past_decoder_sequence_length", "past_encoder_sequence_length"
BEAMS, ALL_ROWS, ROOM = "beams", "rows", "capacity"  # rows = batch_size x beams, those of one source side by side


@dataclass(frozen=True)
class Port:
    """One named input or output, its NumPy dtype, and its dims: a number or the name of a dynamic one."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Graph:
    """One graph of a bundle: what it is called in code, its file, and its ports in order."""

    role: str
    file: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def port(self, name: str) -> Port:
        """The input or output of that name; no two share one."""
        return next(port for port in (*self.inputs, *self.outputs) if port.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As the manifest records it."""
        ports = {
            side: [{"name": port.name, "dtype": port.dtype, "dims": list(port.dims)} for port in getattr(self, side)]
            for side in ("inputs", "outputs")
        }
        return {"file": self.file, **ports}


def cache_names(layers: int, prefix: str) -> Iterator[str]:
    """Per layer: decoder.key, decoder.value, encoder.key, encoder.value, after `past_key_values` or `present`."""
    for layer in range(layers):
        for side in ("decoder", "encoder"):
            for part in ("key", "value"):
                yield f"{prefix}.{layer}.{side}.{part}"


def past(config: TransformerConfig) -> tuple[str, ...]:
    """The decoder's cache inputs, in order."""
    return tuple(cache_names(config.decoder_layers, "past_key_values"))


def present(config: TransformerConfig) -> tuple[str, ...]:
    """The decoder's cache outputs, in the order of the inputs that they become."""
    return tuple(cache_names(config.decoder_layers, "present"))


def is_cross(name: str) -> bool:
    """Whether a cache port holds the source's keys and values, which never change after the first call."""
    return ".encoder." in name


def alignment_layer(config: TransformerConfig) -> int:
    """The decoder layer whose attention over the source says what a token was made of: the last."""
    return config.decoder_layers - 1


def cross_attention(config: TransformerConfig) -> str:
    """The portable decoder's output of that layer's attention, named as Hugging Face names those of all layers."""
    return f"{CROSS_ATTENTION}s.{alignment_layer(config)}"


def is_attention(name: str) -> bool:
    """Whether an output is what tokens look at in the source."""
    return name.startswith(CROSS_ATTENTION)


def portable(config: TransformerConfig, dtype: str) -> tuple[Graph, ...]:
    """The graphs of the portable target: encoder, decoder, and the one that picks rows of a state."""
    return _encoder(config, dtype), _decoder(config, dtype), _select(config, dtype)


def cross_names(config: TransformerConfig) -> tuple[str, ...]:
    """The source's keys and values, layer by layer: what the encoder of the cpu target computes."""
    return tuple(f"cross.{layer}.{part}" for layer in range(config.decoder_layers) for part in ("key", "value"))


def own_names(config: TransformerConfig, prefix: str) -> tuple[str, ...]:
    """The target's own keys and values, layer by layer, after `past` or `present`."""
    return tuple(f"{prefix}.{layer}.{part}" for layer in range(config.decoder_layers) for part in ("key", "value"))


def cpu(config: TransformerConfig, dtype: str) -> tuple[Graph, ...]:
    """The graphs of the cpu target: encoder, and one step of the decoder."""
    return _cpu_encoder(config, dtype), _cpu_step(config, dtype)


def shortens(config: TransformerConfig, precision: str) -> bool:
    """Whether a step of the cpu target finds the likeliest tokens (k < 0) without computing all logits."""
    return precision == "fp32" and config.target_vocab_size >= LARGE_VOCABULARY


def _cpu_encoder(config: TransformerConfig, dtype: str) -> Graph:
    inputs = (Port(INPUT_IDS, "int64", (BATCH, SOURCE)), Port(SOURCE_LENGTHS, "int32", (BATCH,)))
    return Graph(ENCODER, "onnx/encoder.onnx", inputs, _cross(config, dtype))


def _cpu_step(config: TransformerConfig, dtype: str) -> Graph:
    inputs = (
        Port(INPUT_IDS, "int64", (BATCH, BEAMS)),
        Port(PAST_LENGTHS, "int32", (ALL_ROWS,)),
        Port(CAPACITY, "int32", (1,)),
        Port(SOURCE_LENGTHS, "int32", (BATCH,)),
        *_cross(config, dtype),
        *_own(config, dtype, "past"),
        Port(ALIGN, "bool", (1,)),  # whether to give the attention over the source; without it, it has no rows
        # k > 0: the k best tokens; k < 0: -k, up to 8, with logits in place of log_probs; 0: none. On x86 without VNNI,
        # 8-bit sums may saturate: there, with a large vocabulary in fp32, k < 0 must not be used.
        Port(COUNT, "int64", (1,)),
    )
    best = (Port(LOG_PROBS, dtype, (ALL_ROWS, COUNT)), Port(IDS, "int64", (ALL_ROWS, COUNT)))
    logits = Port(LOGITS, dtype, (ALL_ROWS, config.target_vocab_size))
    attention = Port(CROSS_ATTENTION, dtype, (ALL_ROWS, SOURCE))  # the mean over the heads of the alignment layer
    return Graph(STEP, "onnx/step.onnx", inputs, (logits, *_own(config, dtype, "present"), attention, *best))


def _cross(config: TransformerConfig, dtype: str) -> tuple[Port, ...]:
    dims = (BATCH, config.heads, SOURCE, config.head_size)
    return tuple(Port(name, dtype, dims) for name in cross_names(config))


def _own(config: TransformerConfig, dtype: str, prefix: str) -> tuple[Port, ...]:
    dims = (ALL_ROWS, config.heads, ROOM, config.head_size)
    return tuple(Port(name, dtype, dims) for name in own_names(config, prefix))


def _encoder(config: TransformerConfig, dtype: str) -> Graph:
    tokens = (BATCH, SOURCE)
    inputs = (Port(INPUT_IDS, "int64", tokens), Port(ATTENTION_MASK, "int64", tokens))
    outputs = (Port(LAST_HIDDEN_STATE, dtype, (*tokens, config.d_model)),)
    return Graph(ENCODER, "onnx/encoder_model.onnx", inputs, outputs)


def _decoder(config: TransformerConfig, dtype: str) -> Graph:
    inputs = (
        Port(INPUT_IDS, "int64", (BATCH, TARGET)),
        Port(ENCODER_HIDDEN_STATES, dtype, (BATCH, SOURCE, config.d_model)),
        Port(ENCODER_ATTENTION_MASK, "int64", (BATCH, SOURCE)),
        *_cache(config, dtype, past(config), PAST_TARGET, PAST_SOURCE),
    )
    outputs = (
        Port(LOGITS, dtype, (BATCH, TARGET, config.target_vocab_size)),
        *_cache(config, dtype, present(config), f"{PAST_TARGET} + {TARGET}", SOURCE),
        Port(cross_attention(config), dtype, (BATCH, config.heads, TARGET, SOURCE)),
    )
    return Graph(DECODER, "onnx/decoder_model_merged.onnx", inputs, outputs)


def _select(config: TransformerConfig, dtype: str) -> Graph:
    kept = (
        Port(ENCODER_HIDDEN_STATES, dtype, (BATCH, SOURCE, config.d_model)),
        Port(ENCODER_ATTENTION_MASK, "int64", (BATCH, SOURCE)),
        *_cache(config, dtype, past(config), PAST_TARGET, PAST_SOURCE),
    )
    picked = tuple(Port(f"selected.{port.name}", port.dtype, ("selected_rows", *port.dims[1:])) for port in kept)
    return Graph(SELECT, "onnx/select_rows.onnx", (*kept, Port(ROWS, "int64", ("selected_rows",))), picked)


def _cache(config: TransformerConfig, dtype: str, names: tuple[str, ...], target: Dim, source: Dim) -> tuple[Port, ...]:
    return tuple(
        Port(name, dtype, (BATCH, config.heads, source if is_cross(name) else target, config.head_size))
        for name in names
    )


CONTRACTS = {"portable": portable, "cpu": cpu}


def compare_ports(graph: Graph, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Iterator[str]:
    """How the inputs and outputs that an engine found in a graph's file differ from the manifest's."""
    for side, expected, found in (("input", graph.inputs, inputs), ("output", graph.outputs, outputs)):
        there, wanted = ({port.name: port for port in ports} for ports in (found, expected))
        yield from (f"{graph.file}: {side} {name} is missing" for name in wanted if name not in there)
        yield from (f"{graph.file}: {side} {name} was not expected" for name in there if name not in wanted)
        for name in (name for name in wanted if name in there and there[name] != wanted[name]):
            yield f"{graph.file}: {side} {name} is {_describe(there[name])}, expected {_describe(wanted[name])}"
        if there == wanted and found != expected:
            yield f"{graph.file}: the {side}s are in another order"


def _describe(port: Port) -> str:
    return f"{port.dtype} [{', '.join(map(str, port.dims))}]"
