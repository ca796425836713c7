"""What the audit says of a graph is what ONNX Runtime's CUDA provider does with it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tests.exporters.cuda.audit import graphs
from tests.fake_cuda.fixture import FakeCuda
from txport.exporters.cuda.audit.capture import unfit
from txport.exporters.cuda.audit.graph import Audit, audit
from txport.exporters.cuda.audit.kernels import OPSETS

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
ON_HOST = ("k",)
DRAWN = 80


def places(found: Audit) -> dict[str, str]:
    return {each.name: CUDA if each.on_device else CPU for each in found.nodes}


def ask_each(fake: FakeCuda, folder: Path, models: dict[str, ModelProto], **how: bool) -> dict[str, dict[str, Any]]:
    files = [graphs.save(model, folder / f"{number}.onnx") for number, model in enumerate(models.values())]
    answers = fake.ask(*({"do": "place", "file": str(file), **how} for file in files))
    return dict(zip(models, answers, strict=True))


def test_a_sound_step_is_accepted_in_every_precision(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    models = {
        f"{name} {opset}": graphs.step(kind, opset=opset)
        for name, kind in graphs.PRECISIONS.items()
        for opset in OPSETS
    }
    for optimised in (False, True):
        for name, answer in ask_each(fake_cuda, tmp_path, models, captured=True, optimised=optimised).items():
            found = audit(models[name], ON_HOST, captured=True)
            assert found.faults == ()
            assert (found.on_device, found.on_host, found.copies) == (len(models[name].graph.node), 0, 0)
            assert answer["error"] is None
            assert set(answer["nodes"].values()) == {CUDA}
            assert optimised or answer["nodes"] == places(found)


def test_faults_are_seen_by_both(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    models = {name: graphs.step(TensorProto.FLOAT16, plant) for name, (plant, _) in graphs.FAULTS.items()}
    for name, answer in ask_each(fake_cuda, tmp_path, models, captured=True).items():
        assert answer["error"] is not None, name
        assert any(graphs.FAULTS[name][1] in fault for fault in audit(models[name], ON_HOST, captured=True).faults), (
            name
        )


def test_types_without_a_kernel_are_seen_by_both(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    models = {}
    for name, kind in graphs.PRECISIONS.items():
        draft = graphs.Draft()
        scores = draft.input("scores", kind, 2, 5)
        draft.output(draft.node("ArgMax", [scores], axis=-1, keepdims=0), TensorProto.INT64, 2)
        models[name] = draft.model()
    refused = {name for name, answer in ask_each(fake_cuda, tmp_path, models, captured=True).items() if answer["error"]}
    found = {name: audit(model, captured=True).faults for name, model in models.items()}
    assert {name for name, faults in found.items() if faults} == refused == {"bf16"}
    assert found["bf16"] == ("CUDA has no kernel for ArgMax (bfloat16 -> int64): n0_ArgMax",)


@pytest.mark.parametrize("fault", graphs.REPLAYED_WRONGLY)
def test_what_would_be_replayed_wrongly_is_refused(fault: str) -> None:
    plant, said = graphs.REPLAYED_WRONGLY[fault]
    found = audit(graphs.step(TensorProto.FLOAT16, plant), ON_HOST, captured=True)
    with pytest.raises(AssertionError, match=said):
        assert found.faults == (), found.faults
    assert audit(graphs.step(TensorProto.FLOAT16, plant), ON_HOST, captured=False).faults == ()


def test_products_that_copy_places_to_the_device_are_refused(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    batches: list[tuple[int, ...]] = [(), (1,), (3,), (1, 1), (1, 3), (4, 3)]
    left = [(8,), *((*dims, 2, 8) for dims in batches)]
    right = [(8,), *((*dims, 8, 5) for dims in batches)]
    models = []
    asked = []
    for number, pair in enumerate(product(left, right)):
        draft = graphs.Draft()
        x, y = (draft.input(name, TensorProto.FLOAT16, *dims) for name, dims in zip("xy", pair, strict=True))
        draft.output(draft.node("MatMul", [x, y]), TensorProto.FLOAT16, *np.matmul(*map(np.zeros, pair)).shape)
        models.append(draft.model())
        file = str(graphs.save(models[-1], tmp_path / f"{number}.onnx"))
        asked.append({"do": "run", "file": file, "lengths": {}, "aliases": {}, "on_host": [], "times": 1})
    for model, answer in zip(models, fake_cuda.ask(*asked), strict=True):
        copies = answer["counts"][0]["uploads"] > 0
        assert bool(audit(model, captured=True).faults) == copies, model.graph.input


@pytest.mark.parametrize(("length", "is_refused"), [(3, False), (1, True), (4, True)])
def test_dims_that_are_not_known_hide_no_others(length: int, is_refused: bool) -> None:
    dims = {"x": (2, 3, 4, 8), "y": ("unk__0", length, 8, 5)}
    reason = unfit(helper.make_node("MatMul", ["x", "y"], ["z"]), "MatMul", dims)
    assert (reason is not None) == is_refused


def test_random_graphs_are_placed_as_the_provider_places_them(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    models = {str(seed): graphs.drawn(seed) for seed in range(DRAWN)}
    on_host = refused = 0
    for name, answer in ask_each(fake_cuda, tmp_path, models, captured=False).items():
        found = audit(models[name], captured=False)
        if answer["error"] is not None:  # neither side has a kernel
            assert not all(each.has_kernel for each in found.nodes), (name, answer)
            continue
        assert answer["nodes"] == places(found), name
        on_host += found.on_host
    for name, answer in ask_each(fake_cuda, tmp_path, models, captured=True).items():
        found = audit(models[name], captured=True)
        is_alone = found.on_host == found.copies == 0
        assert (answer["error"] is None) == is_alone or not found.on_host, (name, answer)
        assert found.faults or answer["error"] is None, name
        refused += answer["error"] is not None
    assert on_host > DRAWN // 4
    assert 0 < refused < DRAWN


def test_functions_of_operators_that_have_kernels(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    models = {}
    for name, kind in graphs.PRECISIONS.items():
        draft = graphs.Draft()
        draft.output(draft.node("Swish", [draft.input("x", kind, 2)]), kind, 2)
        models[name] = draft.model()
        assert audit(models[name], captured=True).faults == ()
    answers = ask_each(fake_cuda, tmp_path, models, captured=True)
    assert {answer["error"] for answer in answers.values()} == {None}


@pytest.mark.parametrize("opset", [18, 23, 26])
def test_an_opset_of_which_nothing_is_known_is_refused(opset: int) -> None:
    draft = graphs.Draft()
    draft.output(draft.node("Add", [draft.input("x", TensorProto.FLOAT, 2), "x"]), TensorProto.FLOAT, 2)
    [fault] = audit(draft.model(opset), captured=False).faults
    assert fault == f"opset {opset}, of whose kernels nothing is known; there are 24, 25"


def test_a_step_is_captured_once_and_replayed(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    file = graphs.save(graphs.step(TensorProto.FLOAT16), tmp_path / "step.onnx")
    [answer] = fake_cuda.ask(
        {"do": "run", "file": str(file), "lengths": {"k": 1}, "aliases": graphs.STATE, "on_host": ["k"], "times": 3}
    )
    first, *others = answer["counts"]
    assert first["replays"] == 1
    assert first["launches"] > 0
    for each in others:
        assert {kind: count for kind, count in each.items() if count} == {"replays": 1, "waits": each["waits"]}
    assert first["refused"] == 0
