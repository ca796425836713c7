"""The portable contract, written out: Optimum and transformers.js load it by these names, in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from txport.bundles.bundle import Bundle
from txport.models.architectures.transformer import TransformerConfig, facts
from txport.models.facts import LENGTH, Facts, Output, key_values
from txport.targets import TARGETS
from txport.targets.ports import DECODER, ENCODER, SELECT, STEP, Graph, Port, compare_ports

# D 24, 3 heads of 8, 11 source and 13 target tokens, 1 + 2 layers: every number is another.
CONFIG = TransformerConfig(
    source_vocab_size=11,
    target_vocab_size=13,
    tied="target",
    d_model=24,
    heads=3,
    feed_forward=32,
    encoder_layers=1,
    decoder_layers=2,
)
FACTS = facts(CONFIG)
B, S, T = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
PAST_T, PAST_S = "past_decoder_sequence_length", "past_encoder_sequence_length"
NEW_T = "past_decoder_sequence_length + decoder_sequence_length"

Row = tuple[str, str, tuple[str | int, ...]]


def portable(float_type: str) -> dict[str, Graph]:
    return {graph.role: graph for graph in TARGETS["portable"].contracts["seq2seq"](FACTS, float_type)}


def contract(float_type: str) -> dict[str, tuple[str, list[Row], list[Row]]]:
    f = float_type
    return {
        "encoder": (
            "onnx/encoder_model.onnx",
            [("input_ids", "int64", (B, S)), ("attention_mask", "int64", (B, S))],
            [("last_hidden_state", f, (B, S, 24))],
        ),
        "decoder": (
            "onnx/decoder_model_merged.onnx",
            [
                ("input_ids", "int64", (B, T)),
                ("encoder_hidden_states", f, (B, S, 24)),
                ("encoder_attention_mask", "int64", (B, S)),
                ("past_key_values.0.decoder.key", f, (B, 3, PAST_T, 8)),
                ("past_key_values.0.decoder.value", f, (B, 3, PAST_T, 8)),
                ("past_key_values.0.encoder.key", f, (B, 3, PAST_S, 8)),
                ("past_key_values.0.encoder.value", f, (B, 3, PAST_S, 8)),
                ("past_key_values.1.decoder.key", f, (B, 3, PAST_T, 8)),
                ("past_key_values.1.decoder.value", f, (B, 3, PAST_T, 8)),
                ("past_key_values.1.encoder.key", f, (B, 3, PAST_S, 8)),
                ("past_key_values.1.encoder.value", f, (B, 3, PAST_S, 8)),
            ],
            [
                ("logits", f, (B, T, 13)),
                ("present.0.decoder.key", f, (B, 3, NEW_T, 8)),
                ("present.0.decoder.value", f, (B, 3, NEW_T, 8)),
                ("present.0.encoder.key", f, (B, 3, S, 8)),
                ("present.0.encoder.value", f, (B, 3, S, 8)),
                ("present.1.decoder.key", f, (B, 3, NEW_T, 8)),
                ("present.1.decoder.value", f, (B, 3, NEW_T, 8)),
                ("present.1.encoder.key", f, (B, 3, S, 8)),
                ("present.1.encoder.value", f, (B, 3, S, 8)),
                ("cross_attentions.1", f, (B, 3, T, S)),
            ],
        ),
    }


@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("role", [ENCODER, DECODER])
def test_contract(role: str, float_type: str) -> None:
    file, inputs, outputs = contract(float_type)[role]
    graph = portable(float_type)[role]
    assert graph.file == file
    assert graph.inputs == tuple(Port(*row) for row in inputs)
    assert graph.outputs == tuple(Port(*row) for row in outputs)


def test_select_takes_the_whole_state_of_the_decoder() -> None:
    graphs = portable("float32")
    select = graphs[SELECT]
    state = graphs[DECODER].inputs[1:]
    assert select.inputs == (*state, Port("rows", "int64", ("selected_rows",)))
    assert select.outputs == tuple(
        Port(f"selected.{port.name}", port.dtype, ("selected_rows", *port.dims[1:])) for port in state
    )
    assert select.file.startswith("onnx/")


def test_each_cache_output_becomes_the_input_of_its_place() -> None:
    graph = portable("float32")[DECODER]
    assert len(graph.becomes) == 8
    for output, name in graph.becomes.items():
        assert output.removeprefix("present") == name.removeprefix("past_key_values")
    assert list(graph.past()) == list(graph.present()) == list(FACTS.state)
    assert [each.owner for each in graph.past()] == ["row", "row", "source", "source"] * 2
    assert list(graph.past("source").values()) == [name for name in graph.past().values() if ".encoder." in name]


def test_no_port_that_breaks_optimum() -> None:
    _, inputs, _ = contract("float32")[DECODER]
    names = {port.name for graph in portable("float32").values() for port in graph.inputs}
    assert "attention_mask" not in {name for name, *_ in inputs}
    assert "use_cache_branch" not in names


def test_manifest_spells_out_the_ports() -> None:
    graph = portable("float32")[ENCODER]
    assert graph.to_dict() == {
        "file": "onnx/encoder_model.onnx",
        "inputs": [
            {"name": "input_ids", "dtype": "int64", "dims": [B, S]},
            {"name": "attention_mask", "dtype": "int64", "dims": [B, S]},
        ],
        "outputs": [{"name": "last_hidden_state", "dtype": "float32", "dims": [B, S, 24]}],
    }


CAUSAL = Facts(task="causal", width=24, target=FACTS.target, state=key_values(2, "row", 3, 8))
ENCODE = Facts(task="encode", width=24, source=FACTS.source, outputs=(Output("last_hidden_state", (LENGTH, 24)),))


@pytest.mark.parametrize("facts", [FACTS, CAUSAL, ENCODE], ids=lambda facts: facts.task)
@pytest.mark.parametrize("target", TARGETS)
def test_a_port_is_found_by_its_name_which_no_other_has(target: str, facts: Facts) -> None:
    for graph in TARGETS[target].contracts[facts.task](facts, "float32"):
        ports = [*graph.inputs, *graph.outputs]
        assert [graph.port(port.name) for port in ports] == ports


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda port: replace(port, dtype="float16"),
            "input_ids is float16 [batch_size, encoder_sequence_length], exp",
        ),
        (lambda port: replace(port, dims=(1, "n")), "is int64 [1, n], expected int64 [batch_size, encoder_sequence_le"),
    ],
)
def test_types_and_dims_are_compared(bundle: Bundle, change: Callable[[Port], Port], message: str) -> None:
    graph = bundle.manifest.graphs[ENCODER]
    inputs = (change(graph.inputs[0]), *graph.inputs[1:])
    (problem,) = compare_ports(graph, inputs, graph.outputs)
    assert message in problem


def test_the_order_of_ports_is_part_of_the_contract(bundle: Bundle) -> None:
    graph = bundle.manifest.graphs[DECODER]
    problems = list(compare_ports(graph, graph.inputs[::-1], graph.outputs))
    assert problems == [f"{graph.file}: the inputs are in another order"]


@pytest.mark.parametrize("target", TARGETS)
def test_attention_over_the_source_is_marked_not_inferred_from_a_name(target: str) -> None:
    for graph in TARGETS[target].contracts["seq2seq"](FACTS, "float32"):
        marked = [port.name for port in graph.outputs if port.is_attention]
        assert graph.attention == (marked[0] if marked else None)
        assert bool(marked) == (graph.role in (DECODER, STEP))
    named = Port("cross_attention_mask", "float32", ())
    assert Graph("model", "model.onnx", (), (named,)).attention is None
