"""Attention and positions at the end of a context: every target agrees with PyTorch, and planted faults are found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.covering import on_each_target
from tests.proof.faults import Edit, attribute, before, constant, nodes
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint, fill
from txport.checkpoints.folder import digest, preset_config
from txport.errors import ParityError
from txport.models import architecture
from txport.proof.context.check import compare_context, is_long, unreached
from txport.proof.parity.calls import no_crash
from txport.proof.parity.cases import not_reached, reach_of
from txport.proof.proven import write
from txport.targets.ports import DECODER, STEP

LONGEST, WINDOW, POWER, WRONG = 20_000, 9_000, 16_384, 8_000
FARTHEST, WIDEST = 70_000, 32_000  # a context with positions that fp16 can't count
LENGTHS = ("max_length", "max_source_length", "max_target_length")
PRESETS = ("tiny", "additive-tiny", "annotated-tiny", "bert-tiny", "gpt2-tiny", "llama-tiny", "opt-tiny", "t5-tiny")
KINDS = (("portable", "fp32"), ("portable", "fp16"), ("cpu", "fp32"), ("cpu", "int8"), ("cuda", "fp16"))


def checkpoint_of(preset: str, longest: int, **changes: object) -> Checkpoint:
    config = preset_config(preset)
    lengths = {name: longest for name in LENGTHS if hasattr(config, name)}
    config = dataclasses.replace(config, **lengths, **changes)  # type: ignore[arg-type]
    model = architecture.of(config).build(config).eval()
    fill(model)
    return Checkpoint(preset, model, digest(f"preset:{preset}"))


@pytest.mark.parametrize(("preset", "kind"), on_each_target(PRESETS, KINDS))
def test_parts_agree_with_pytorch_beyond_whole_graphs(preset: str, kind: tuple[str, str], tmp_path: Path) -> None:
    target, precision = kind
    checkpoint = checkpoint_of(preset, 1500)
    bundle = write(checkpoint, tmp_path, target=target, precision=precision)
    found = list(compare_context(bundle, checkpoint))
    assert [each for each in found if not each.passed] == []
    attentions = {each.tensor for each in found if "attention" in each.tensor}
    layers = [layer for stack in checkpoint.outline.stacks for layer in stack.layers]
    assert len(attentions) >= len(layers)
    assert {each.step for each in found if each.case in ("last positions", "last position", "longest source")} == {1499}


@pytest.mark.parametrize("kind", [("portable", "fp32"), ("cpu", "int8")], ids=str)
def test_a_window_to_both_sides_is_compared_at_the_end_of_a_source(kind: tuple[str, str], tmp_path: Path) -> None:
    """In blocks: the scores of all pairs would not fit, so whole sources are computed without picking queries."""
    checkpoint = checkpoint_of("modernbert-tiny", 9000)
    assert unreached(checkpoint) == []
    bundle = write(checkpoint, tmp_path, target=kind[0], precision=kind[1])
    found = list(compare_context(bundle, checkpoint))
    assert [each for each in found if not each.passed] == []
    assert [each.step for each in found] == [8999] * 3


def test_a_short_context_is_compared_in_whole_graphs_alone(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama-tiny", 1024)
    bundle = write(checkpoint, tmp_path, target="portable", precision="fp32")
    assert not is_long(checkpoint.facts)
    assert list(compare_context(bundle, checkpoint)) == []
    assert not_reached(checkpoint.facts, by_part=True) == unreached(checkpoint) == []


def test_what_no_whole_graph_reaches_is_said() -> None:
    facts = checkpoint_of("llama-tiny", LONGEST).facts
    (line,) = not_reached(facts, by_part=True)
    assert f"more than {reach_of(facts)[1]} tokens, of {LONGEST}" in line
    assert "part by part" in line
    assert "part" not in not_reached(facts, by_part=False)[0]
    (limit,) = unreached(checkpoint_of("t5-tiny", 9000))
    assert limit.endswith(", of 9000")


def rotary_table(model: ModelProto) -> None:
    """Positions from 8,000 on are rotated as if they were one further."""
    for tensor in (each for each in model.graph.initializer if "rotary" in each.name):
        values = numpy_helper.to_array(tensor).copy()
        values[WRONG:-1] = values[WRONG + 1 :]
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def short_window(model: ModelProto) -> None:
    """The window ends one position too early."""
    for tensor in model.graph.initializer:
        if numpy_helper.to_array(tensor).size == 1 and numpy_helper.to_array(tensor).item() == -WINDOW:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    for number, node in enumerate(nodes(model, "GroupQueryAttention")):
        if any(each.name == "local_window_size" and each.i == WINDOW for each in node.attribute):
            attribute("GroupQueryAttention", number, local_window_size=WINDOW - 1)(model)


def short_cache(model: ModelProto) -> None:
    """A full cache has no place for its first token, so that the graph does not run, or none for its last one."""
    for node in nodes(model, "GroupQueryAttention"):
        last = constant(model, LONGEST - 2, np.int32)
        before(model, node, 5, "Min", last)
    for node in [each for each in nodes(model, "Concat") if each.output[0].startswith("present.")]:
        ends = [constant(model, [number], np.int64) for number in (-(LONGEST - 1), 1 << 40, 2)]
        user = f"clipped.{node.output[0]}"
        whole = node.output[0]
        for other in model.graph.node:
            if other is not node:
                other.input[:] = [user if name == whole else name for name in other.input]
        clip = helper.make_node("Slice", [whole, *ends], [user], name=user)
        model.graph.node.insert(list(model.graph.node).index(node) + 1, clip)


def mask_that_ends(model: ModelProto) -> None:
    """Padding beyond position 16,384 is not masked."""
    if not any(each.name == "attention_mask" for each in model.graph.input):
        for node in nodes(model, "GroupQueryAttention"):
            before(model, node, 5, "Min", constant(model, POWER - 1, np.int32))
        return
    table = np.zeros((1, LONGEST), np.int64)
    table[:, POWER:] = 1
    cut = [
        helper.make_node("Shape", ["attention_mask"], ["planted.size"], start=1),
        helper.make_node("Slice", [*(constant(model, each, np.int64) for each in (table, [0])), "planted.size",
                                   constant(model, [1], np.int64)], ["planted.table"]),
    ]  # fmt: skip
    cast = next(node for node in nodes(model, "Cast") if node.input[0] == "attention_mask")
    before(model, cast, 0, "Max", "planted.table")
    for node in reversed(cut):
        model.graph.node.insert(0, node)


FAULTS: dict[str, Edit] = {
    "rotary": rotary_table,
    "window": short_window,
    "cache": short_cache,
    "mask": mask_that_ends,
}


@pytest.fixture
def far(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Bundle, Checkpoint]]:
    """Bundles of a decoder with a long context, a window in one of its layers, and rotary positions."""
    checkpoint = checkpoint_of("llama-tiny", LONGEST, windows=(WINDOW, 0))

    def made(target: str, precision: str) -> tuple[Bundle, Checkpoint]:
        folder = tmp_path_factory.mktemp(f"{target}-{precision}")
        return write(checkpoint, folder, target=target, precision=precision), checkpoint

    return made


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("target", "precision"), [("portable", "fp32"), ("portable", "fp16"), ("cpu", "int8")])
def test_faults_at_the_far_end_are_found(
    far: Callable[[str, str], tuple[Bundle, Checkpoint]], target: str, precision: str, fault: str
) -> None:
    bundle, checkpoint = far(target, precision)
    changed = edit_graph(bundle.path, DECODER if target == "portable" else STEP, FAULTS[fault])
    is_crash = (target, fault) == ("portable", "cache")
    with pytest.raises(ParityError, match="does not run") if is_crash else contextlib.nullcontext():
        with no_crash("the cut"):
            found = list(compare_context(changed, checkpoint))
        places = {each.case for each in found if not each.passed}
        assert places, fault
        assert "long prompt" not in places, "it begins further on"
        if fault == "window":
            assert {each.tensor for each in found if not each.passed} == {"decoder.0.attention"}


@pytest.mark.parametrize(("target", "precision"), [("portable", "fp32"), ("cpu", "int8"), ("cuda", "fp16")])
def test_without_a_fault_it_passes_also_in_a_longer_context(target: str, precision: str, tmp_path: Path) -> None:
    for longest, window in ((LONGEST, WINDOW), (FARTHEST, WIDEST)):
        checkpoint = checkpoint_of("llama-tiny", longest, windows=(window, 0))
        (tmp_path / str(longest)).mkdir()
        bundle = write(checkpoint, tmp_path / str(longest), target=target, precision=precision)
        assert [each for each in compare_context(bundle, checkpoint) if not each.passed] == []
