"""Facts that the cpu target can't have, or that its graph shows to be wrong, are named in one line."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import pytest

from tests.tiny import tiny_config, tiny_model
from txport.bundles.ports import CONTRACTS, STEP
from txport.errors import UnsupportedError
from txport.exporters.check import GraphError
from txport.exporters.cpu.ops import require_fusable
from txport.exporters.cpu.top import add_top, without_top
from txport.exporters.targets import TARGETS
from txport.exporters.trace import trace
from txport.models.facts import LENGTH, StateTensor


@pytest.mark.parametrize("changes", [{"output": "log_probs"}, {"output_bias": True}])
def test_logits_that_are_not_plain_are_told_from_the_fact(changes: dict[str, object]) -> None:
    model = tiny_model(tiny_config(**changes))
    graph = next(each for each in CONTRACTS["cpu"]["seq2seq"](model.facts, "float32") if each.role == STEP)
    target = TARGETS["cpu"]
    traced: ir.Model = trace(target.modules["seq2seq"][STEP](model), without_top(graph), 18, target.forms)
    with pytest.raises(GraphError, match=r"^has_plain_logits is true in the model's facts, but .*=False$"):
        add_top(traced, graph, shorten=True)


def test_keys_and_values_of_several_shapes_are_refused() -> None:
    model = tiny_model(tiny_config(d_model=32, heads=2))
    require_fusable(model)
    first, *rest = model.facts.state
    other = StateTensor(first.layer, first.role, first.owner, (1, LENGTH, 16))
    model.facts = replace(model.facts, state=(other, *rest))
    words = "needs keys and values of one shape.* of a row are .*; export --target portable"
    with pytest.raises(UnsupportedError, match=words):
        require_fusable(model)
