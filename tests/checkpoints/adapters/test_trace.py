"""What PyTorch's exporter can't make hold for every length is refused with the line or the length at fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.checkpoints.adapters.modules import (
    ALIBI,
    Tagger,
    alibi_step,
    encoder_of,
    load_alibi,
    seeded,
)
from txport import adapters
from txport.checkpoints.adapters.load import adapt
from txport.errors import UnsupportedError
from txport.exporters.portable.modules import PORTABLE
from txport.exporters.program import trace_program
from txport.targets import TARGETS


def traced(module: nn.Module, adapter: adapters.Adapter, dtype: str = "float32") -> ir.Model:
    model = adapt(module, adapter).model
    facts = adapter.facts
    graph = next(each for each in TARGETS["portable"].contracts[facts.task](facts, dtype) if each.has_weights)
    model = model.half() if dtype == "float16" else model
    return trace_program(PORTABLE[facts.task][graph.role](model), graph, 18, facts)


def looped(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    x = model.words(ids)
    return torch.stack([model.mix(x[:, place]) for place in range(ids.shape[1])], 1)


def counted(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return model.mix(model.words(ids)) / int(ids.shape[1])


def branched(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    x = model.words(ids)
    return model.mix(x) if ids.shape[1] > 10 else x


def looking(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    x = model.words(ids)
    if ids.sum() > 5:
        x = model.mix(x)
    return x


def taking(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return model.words(ids) * int(mask.sum().item())


def line_of(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


@pytest.mark.parametrize(
    ("encode", "told"),
    [
        (looped, "only for 3 as the sequence_length of input_ids: Python that counts with a length"),
        (counted, "only for 3 as the sequence_length of input_ids: Python that counts with a length"),
        (branched, "only for 2 to 10 as the sequence_length of input_ids, of up to 24"),
        (looking, f"by values that only a run knows (if, int, .item()) (test_trace.py, line {line_of(looking) + 2})"),
        (taking, f"by values that only a run knows (if, int, .item()) (test_trace.py, line {line_of(taking) + 1})"),
    ],
)
def test_code_that_holds_for_some_lengths_only_is_refused(
    encode: Any, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsupportedError) as found:
        traced(seeded(Tagger), encoder_of(encode))
    assert told in str(found.value)
    assert capfd.readouterr() == ("", "")  # PyTorch would tell of it on many lines
    assert "\n" not in str(found.value)


@torch.compiler.nested_compile_region
def gated(model: Any, x: Tensor) -> Tensor:
    return F.glu(torch.cat([x, model.mix(x)], -1), -1)


@torch.compiler.nested_compile_region
def nested(model: Any, x: Tensor) -> Tensor:
    return F.softplus(gated(model, x)) + F.hardswish(gated(model, 2 * x))


def test_nested_functions_become_operators_of_the_graph() -> None:
    model = traced(seeded(Tagger), encoder_of(lambda model, ids, mask: nested(model, model.words(ids))))
    assert not model.functions
    assert {node.domain for node in model.graph} == {""}


class Recurrent(Tagger):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(16, 16, batch_first=True)
        self.cell = nn.GRUCell(16, 16)


def over_tokens(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = model.layer(model.words(ids))[0]
    return found


def in_three_steps(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    x = model.words(ids).flatten(0, 1)
    state = torch.zeros_like(x)
    for _ in range(3):
        state = model.cell(x, state)
    return state.view(*ids.shape, -1)


def test_a_recurrent_layer_is_refused_before_the_trace() -> None:
    with pytest.raises(UnsupportedError, match=r"^layer is an nn\.GRU: PyTorch's exporter writes .*docs/adapters\.md"):
        adapt(seeded(Recurrent), encoder_of(over_tokens))
    assert traced(seeded(Recurrent), encoder_of(in_three_steps)).graph.num_nodes() > 0


def test_a_weight_with_the_name_of_a_port_is_refused() -> None:
    class Named(Tagger):
        def __init__(self) -> None:
            super().__init__()
            self.attention_mask = nn.Parameter(torch.ones(16))

    with pytest.raises(UnsupportedError, match="the module's attention_mask has the name of a port"):
        traced(Named(), encoder_of(lambda model, ids, mask: model.words(ids) * model.attention_mask))


def test_a_graph_must_give_the_type_of_its_precision() -> None:
    def step(model: Any, inputs: Any) -> Any:
        logits, caches = alibi_step(model, inputs)
        return logits.float(), caches

    with pytest.raises(UnsupportedError, match="gives logits in float32, expected float16"):
        traced(load_alibi(), dataclasses.replace(ALIBI, step=step), "float16")
