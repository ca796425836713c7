"""Facts that the cpu target can't have, or that its graph shows to be wrong, are named in one line."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import onnx_ir as ir
import pytest

from tests.tiny import tiny_config, tiny_model
from txport.errors import UnsupportedError
from txport.exporters.check import GraphError
from txport.exporters.cpu.exporter import EXPORTER, check_operators
from txport.exporters.cpu.operators import GROUPED, SINKS
from txport.exporters.cpu.ops import require_fusable
from txport.exporters.cpu.top import add_top, without_top
from txport.exporters.fused.parts import PACKED
from txport.exporters.tracing.trace import kinds_of_trace, parts_of_trace, trace
from txport.models.architectures.llama import Llama, LlamaConfig
from txport.models.facts import LENGTH, StateTensor
from txport.targets import TARGETS
from txport.targets.ports import STEP


@pytest.mark.parametrize("changes", [{"output": "log_probs"}, {"output_bias": True}])
def test_logits_that_are_not_plain_are_told_from_the_fact(changes: dict[str, object]) -> None:
    model = tiny_model(tiny_config(**changes))
    graph = next(each for each in TARGETS["cpu"].contracts["seq2seq"](model.facts, "float32") if each.role == STEP)
    target = EXPORTER
    traced: ir.Model = trace(target.modules["seq2seq"][STEP](model), without_top(graph), 18, target.forms)
    with pytest.raises(GraphError, match=r"^has_plain_logits is true in the model's facts, but .*=False$"):
        add_top(traced, graph, shorten=True)


def test_keys_and_values_of_several_shapes_are_refused() -> None:
    model = tiny_model(tiny_config(d_model=32, heads=2))
    require_fusable(model)
    first, *rest = model.facts.state
    other = StateTensor(first.layer, first.role, first.owner, (1, LENGTH, 16))
    model.facts = replace(model.facts, state=(other, *rest))
    words = "needs keys and values of one shape.* of a row are .*; export it with target='portable'"
    with pytest.raises(UnsupportedError, match=words):
        require_fusable(model)


CONFIG = LlamaConfig(
    vocab_size=32,
    d_model=32,
    heads=2,
    head_size=16,
    decoder_layers=2,
    feed_forward=48,
    max_length=32,
    windows=(3, 0),
    attention_cap=2.1,  # which no fp32 number is
    attention_sinks=True,
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"local_window_size": None},
            "say: 2 GroupQueryAttention with softcap 2.1, do_rotary, head_sink instead of 1, "
            "0 GroupQueryAttention with local_window_size 3, softcap 2.1, do_rotary, head_sink instead of 1$",
        ),
        (
            {"local_window_size": 4},
            "1 GroupQueryAttention with local_window_size 4, softcap 2.1, do_rotary, head_sink instead of 0$",
        ),
        ({"softcap": None}, "1 GroupQueryAttention with local_window_size 3, do_rotary, head_sink instead of 0"),
        ({"do_rotary": None}, "1 GroupQueryAttention with local_window_size 3, softcap 2.1, head_sink instead of 0"),
        ({"head_sink": None}, "1 GroupQueryAttention with local_window_size 3, softcap 2.1, do_rotary instead of 0"),
        ({}, None),
    ],
)
def test_an_operator_that_lost_what_its_part_does_is_found_without_running_it(
    changes: dict[str, int | None], told: str | None
) -> None:
    model = Llama(CONFIG).eval()
    (graph,) = TARGETS["cpu"].contracts["causal"](model.facts, "float32")
    target = EXPORTER
    traced = trace(target.modules["causal"][STEP](model), target.traced(graph), 18, target.forms)
    became = parts_of_trace(traced)
    kinds = kinds_of_trace(traced)
    node = next(each for each in traced.graph if each.op_type == GROUPED)  # of the layer with a window
    if "head_sink" in changes:
        node.replace_input_with(SINKS, None)
    for name, value in changes.items():
        node.attributes.pop(name, None)
        if value is not None:
            node.attributes[name] = ir.AttrInt64(name, value)
    with pytest.raises(GraphError, match=told) if told else nullcontext():
        check_operators(traced, became, kinds, became[PACKED], STEP)
