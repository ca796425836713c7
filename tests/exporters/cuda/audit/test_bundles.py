"""Every graph of a cuda bundle runs on CUDA alone, as ONNX Runtime's provider says and as the audit says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from tests.bundles import drivers
from tests.fake_cuda.fixture import FakeCuda
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.cli import cli
from txport.errors import BundleError
from txport.exporters.check import GraphError, check_graph
from txport.exporters.cuda.audit.graph import audit_port
from txport.inspection.kernels import audits
from txport.inspection.page import page
from txport.runtimes.ort.nvidia.fit import needs_cudnn
from txport.targets.ports import STEP

CUDA = "CUDAExecutionProvider"
CASES = ("seq2seq", "speech", "causal", "classify", "relative-tiny", "additive-tiny")
# Kernels are of operators and of types: all models in both types of 16 bits, in the others those whose nodes or kernels
# are of no other.
TAKEN = {
    "fp16": CASES,
    "bf16": CASES,
    "fp32": ("seq2seq", "causal", "speech", "relative-tiny", "additive-tiny"),
    "int8": ("seq2seq", "causal", "classify"),
    "int4": ("seq2seq", "causal"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Bundle]:
    known: dict[tuple[str, str], Bundle] = {}

    def bundle(case: str, precision: str) -> Bundle:
        if (case, precision) not in known:
            known[case, precision] = drivers.made(case, "cuda", precision, tmp_path_factory.mktemp(case))
        return known[case, precision]

    return bundle


@pytest.mark.parametrize("precision", TAKEN)
def test_the_provider_takes_every_node(made: Callable[[str, str], Bundle], fake_cuda: FakeCuda, precision: str) -> None:
    graphs = [
        (made(case, precision), role) for case in TAKEN[precision] for role in made(case, precision).manifest.graphs
    ]
    asked = [
        {"do": "place", "file": str(bundle.file(role)), "captured": role == STEP, "optimised": optimised}
        for bundle, role in graphs
        for optimised in (False, True)
    ]
    answers = iter(fake_cuda.ask(*asked))
    for bundle, role in graphs:
        found = audits(bundle)[role]
        assert found.faults == ()
        assert (found.on_host, found.copies) == (0, 0)
        plain = next(answers)
        optimised = next(answers)
        assert plain["error"] is optimised["error"] is None
        assert plain["nodes"] == {each.name: CUDA for each in found.nodes}
        assert set(optimised["nodes"].values()) == {CUDA}


@pytest.mark.parametrize("case", CASES)
def test_convolutions_alone_need_cudnn(made: Callable[[str, str], Bundle], case: str) -> None:
    bundle = made(case, "fp16")
    reason = needs_cudnn(bundle, bundle.manifest.graphs)
    assert reason == (f"{bundle.path} needs it for Conv" if case == "speech" else None)


def test_a_planted_fault_is_refused_with_its_name(made: Callable[[str, str], Bundle], tmp_path: Path) -> None:
    bundle = made("seq2seq", "fp16")
    model = read_model(bundle.file(STEP))
    writer = next(node for node in model.graph.node if node.op_type == "TensorScatter")
    model.graph.node.insert(0, onnx.helper.make_node("Shape", [writer.input[0]], ["dims"], "asked"))
    model.graph.node.append(onnx.helper.make_node("Reshape", [writer.output[0], "dims"], ["same"], "shaped"))
    onnx.save(model, str(tmp_path / "step.onnx"))
    port = bundle.manifest.graphs[STEP]
    assert audit_port(model, port).faults == ("shapes, which lie on the host: asked",)
    with pytest.raises(GraphError, match=r"step\.onnx breaks the cuda contract: .*lie on the host: asked"):
        check_graph(tmp_path / "step.onnx", port, bundle.manifest)


def test_inspect_says_where_nodes_run(made: Callable[[str, str], Bundle], tmp_path: Path) -> None:
    bundle = made("causal", "bf16")
    nodes = {role: len(each.nodes) for role, each in audits(bundle).items()}
    found = CliRunner().invoke(cli, ["inspect", str(bundle.path), "--json"])
    assert found.exit_code == 0, found.output
    said: dict[str, Any] = json.loads(found.stdout)["on_cuda"]
    assert {role: each["on_device"] for role, each in said.items()} == nodes
    assert {row["has_kernel"] for each in said.values() for row in each["kernels"]} == {True}
    shown = CliRunner().invoke(cli, ["inspect", str(bundle.path)])
    assert f"on CUDA: {nodes[STEP]} nodes on the device, 0 on the host, 0 tensors copied" in shown.output
    assert re.search(r"TensorScatter +bfloat16, int64 -> bfloat16 +4 +yes", shown.output)
    assert f"on CUDA: {nodes[STEP]} nodes on the device" in page(bundle)


def test_inspect_works_where_onnx_is_missing(
    made: Callable[[str, str], Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made("causal", "bf16")
    for name in [each for each in sys.modules if each.startswith("txport.exporters.cuda.audit")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = "an audit of CUDA's kernels needs onnx, which is not installed: pip install 'txport[export]'"
    assert json.loads(CliRunner().invoke(cli, ["inspect", str(bundle.path), "--json"]).stdout)["on_cuda"] == said
    assert said in CliRunner().invoke(cli, ["inspect", str(bundle.path)]).output
    assert "FusedMatMul" in page(bundle)


def test_a_strangers_graph_ends_in_one_line(tmp_path: Path) -> None:
    bundle = drivers.made("causal", "cuda", "fp16", tmp_path)

    def forget(model: onnx.ModelProto) -> None:
        cast = next(node for node in model.graph.node if node.op_type == "Cast")
        del cast.attribute[:]

    edit_graph(bundle.path, STEP, forget)
    found = CliRunner().invoke(cli, ["inspect", str(bundle.path)])
    assert isinstance(found.exception, BundleError)
    assert "onnx/step.onnx is no sound graph" in str(found.exception)


def test_the_driver_captures_a_step_and_replays_it(made: Callable[[str, str], Bundle], fake_cuda: FakeCuda) -> None:
    report = fake_cuda.work / "driven.json"
    cases = [(case, "fp16") for case in ("causal", "seq2seq", "relative-tiny", "additive-tiny")]
    for case, precision in (*cases, ("causal", "int8"), ("seq2seq", "int4")):
        arguments = str(made(case, precision).path), str(report)
        fake_cuda.python("-m", "tests.fake_cuda.driven", *arguments, libraries=fake_cuda.libraries.cuda)  # no cuDNN
        said = json.loads(report.read_text(encoding="utf-8"))
        assert set(said["placement"]) == {CUDA}
        first, *others = said["greedy"]
        assert first["launches"] > 0
        later = {kind: sum(each[kind] for each in others) for kind in first}
        assert later["launches"] == later["allocations"] == later["uploads"] == 0
        assert later["replays"] == later["downloads"]  # each step is replayed once, and its best tokens come back
        assert first["replays"] + later["replays"] >= len(said["greedy"])
        assert said["refused"] == 0
        captures, *again = said["threads"]  # a graph that was captured on one of them is replayed on all others
        assert captures["launches"] > again[0]["launches"] == again[1]["launches"]
        assert captures["replays"] - again[0]["replays"] == 1
        ahead = int(case != "causal")
        main = 0
        assert said["beside"]["start"][ahead] > 0
        assert said["beside"]["start"][1 - ahead] == said["beside"]["step"][1] == 0
        assert said["beside"]["step"][main] > 0
        assert first["followed"] == int(case != "causal")


def test_what_users_lend_is_what_is_used(made: Callable[[str, str], Bundle], fake_cuda: FakeCuda) -> None:
    """All kernels are on the user's stream; tensors on the GPU come and go by DLPack without a copy."""
    report = fake_cuda.work / "lent.json"
    folders = [str(made(case, "fp16").path) for case in ("seq2seq", "classify")]
    fake_cuda.python("-m", "tests.fake_cuda.lent", *folders, str(report), libraries=fake_cuda.libraries.cuda)
    said = json.loads(report.read_text(encoding="utf-8"))
    assert said["stream"]["is the user's"] == [True, True]
    assert said["stream"]["streams"] == 1
    assert said["stream"]["launches"][0] > 0
    found = said["dlpack"]
    assert [place for _, place in found["outputs"].values()] == ["cuda"] * len(found["outputs"])
    assert (found["copies"], found["asked"]) == (0, [True, True])
    assert found["refused"] == "a tensor must lie on the GPU, got one on DLPack's device 1; move it there"
