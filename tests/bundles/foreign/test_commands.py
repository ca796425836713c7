"""The commands over a folder that others exported."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import txport
from tests.audio.noise import noise
from tests.bundles.foreign.layouts import lay_out
from tests.checkpoints.families.test_families import SOURCES
from tests.inspection.test_page import read as whole_page
from tests.loading import bundles as makes
from tests.recorded import FAMILIES as FOLDER
from tests.recorded import WHISPER as SPEECH
from tests.seeded import bundle_of
from txport import runtimes
from txport.api import release
from txport.api.locate import open_bundle
from txport.api.model import Model
from txport.bench import measure as bench
from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.graphs import read_outline
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli import main
from txport.errors import ParityError
from txport.inspection.page import page
from txport.inspection.weights import parts_of
from txport.targets import FOREIGN

Portable = Callable[[str], Bundle]
IDS = " ".join(map(str, SOURCES[0]))


@pytest.fixture(scope="module")
def folders(portable: Portable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("foreign")
    return {
        name: lay_out(portable(name), layout, folder / name)
        for name, layout in {"marian": "merged", "gpt2": "unplaced", "bert-labels": "typed"}.items()
    }


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = 0
    try:
        main(list(map(str, arguments)))
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_it_runs_and_scores_as_ours_does(
    folders: dict[str, Path], portable: Portable, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--beams", "3", "--nbest", "2"], ["--stream"]):
        theirs = call(capsys, "run", folders["marian"], "--ids", IDS, *more)
        assert theirs[0] == 0, theirs
        assert theirs == call(capsys, "run", portable("marian").path, "--ids", IDS, *more)
    scored = [
        call(capsys, "score", path, "--ids", IDS, "5 7 2") for path in (folders["marian"], portable("marian").path)
    ]
    assert scored[0] == scored[1]
    assert scored[0][0] == 0


def test_what_it_is_is_shown(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "inspect", folders["marian"])
    assert code == 0
    assert "exported by others: marian, seq2seq, layout merged" in out
    code, out, _ = call(capsys, "inspect", folders["gpt2"], "--json")
    values = json.loads(out)
    assert (values["target"], values["layout"], values["facts"]["task"]) == ("foreign", "one", "causal")


@pytest.mark.parametrize("name", ["marian", "gpt2", "bert-labels"])
def test_parity_holds_it_against_its_checkpoint(
    name: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    command = ("parity", folders[name], "--checkpoint", FOLDER / name, "--runtime", "ort", "--report", report)
    code, out, _ = call(capsys, *command)
    assert code == 0, out
    assert "weights and graphs one by one, whose names and ports are not ours" in out
    values = json.loads(report.read_text())
    assert values["verdict"] == "pass"
    assert values["checkpoint"]["name"] == name
    assert len(values["cases"]) > 5


def test_parity_is_on_onnx_runtime_unless_it_is_told_otherwise() -> None:
    assert runtimes.installed(FOREIGN.name) == ["ort"]


def test_parity_finds_a_changed_weight(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["gpt2"], tmp_path / "changed"))
    model = onnx.load(str(folder / "model.onnx"))
    (tensor,) = (each for each in model.graph.initializer if each.name == "decoder.1.feed_forward.outer.weight")
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.1, tensor.name))
    onnx.save(model, str(folder / "model.onnx"))
    assert not release.parity(open_bundle(folder), FOLDER / "gpt2", {"ort": "cpu"}).passed


def test_another_checkpoint_is_no_checkpoint_of_it(folders: dict[str, Path]) -> None:
    with pytest.raises(ParityError, match=r"config.json says task 'causal', its checkpoint 'seq2seq'"):
        release.parity(open_bundle(folders["gpt2"]), FOLDER / "marian", {"ort": "cpu"})
    with pytest.raises(ParityError, match="says outputs"):
        release.parity(open_bundle(folders["bert-labels"]), FOLDER / "bert", {"ort": "cpu"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify",), "holds no goldens to be held to; `txport parity"),
        (("parity",), "does not say what it was exported from; name it with --checkpoint"),
        (("parity", "--checkpoint", FOLDER / "marian", "--bisect", "--runtime", "ort"), "can't be bisected"),
        (("run", "--ids", IDS, "--continuous"), "continuous batching needs a cpu or cuda bundle"),
        (("run", "--ids", IDS, "--alignment", "hard", "--json"), "alignment needs attention over a source"),
    ],
)
def test_what_can_t_be_done_is_refused(
    arguments: tuple[Any, ...], message: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *more = arguments
    code, _, err = call(capsys, command, folders["marian"], *more)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def test_pytorch_runs_its_checkpoint_in_its_place(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    there = ("run", folders["marian"], "--ids", IDS, "--beams", "2")
    in_torch = call(capsys, *there, "--runtime", "torch", "--checkpoint", FOLDER / "marian")
    assert in_torch == call(capsys, *there)
    assert in_torch[0] == 0


def test_it_is_measured(folders: dict[str, Path]) -> None:
    plan = bench.Plan(batch=(2,), beams=(2,), source=(5,), tokens=(3,), rounds=3, threads=1, inputs=2, starts=1)
    marian = open_bundle(folders["marian"])
    found = bench.run(bench.candidates([("marian", marian)], ["ort"], str(FOLDER / "marian")), plan)
    assert {"encode", "first token", "further token", "tokens"} <= found["sizes"][0]["figures"]["ort"].keys()


def test_speech_is_written_down(tmp_path: Path) -> None:
    """What is heard, and what tokens mean, follows from the files that Optimum writes too."""
    bundle = bundle_of(load_checkpoint(str(SPEECH)), tmp_path / "bundle", "portable")
    folder = lay_out(bundle, "apart", tmp_path / "foreign")
    shutil.copyfile(SPEECH / "preprocessor_config.json", folder / "preprocessor_config.json")
    shutil.copyfile(SPEECH / "generation_config.json", folder / "generation_config.json")
    ours = txport.load(bundle.path)
    theirs = txport.load(folder)
    pieces = [noise("short"), noise("long")]
    for how in ({}, {"language": "de", "timestamps": True}):
        assert theirs.transcribe(pieces, **how) == ours.transcribe(pieces, **how)


def test_text_goes_through_its_tokenizer(tmp_path: Path) -> None:
    texted = makes.texted(tmp_path)
    calls: dict[str, tuple[str, Callable[[Model], Any]]] = {
        "translates": ("merged", lambda model: model.generate("w7 w9", max_new_tokens=4)[0].hypotheses[0].tokens),
        "fills": ("typed", lambda model: [each.token for each in model.fill("w7 [MASK]")[0][0]]),
        "classifies": ("typed", lambda model: [each.label for each in model.classify("w8 w9")[0]]),
    }
    for name, (layout, told) in calls.items():
        folder = lay_out(texted[name], layout, tmp_path / f"{name} 2")
        assert told(txport.load(folder)) == told(txport.load(texted[name].path))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("t5", "merged"),
        ("t5", "apart"),
        ("t5", "whole"),
        ("gpt2", "apart"),
        ("gpt2", "whole"),
        ("bert-labels", "typed"),
    ],
)
def test_a_page_draws_it(name: str, layout: str, portable: Portable, tmp_path: Path) -> None:
    """Ports, operators and sizes of each graph, and how they run one after the other."""
    variant = "fp16" if layout == "apart" else ""
    found = open_bundle(lay_out(portable(name), layout, tmp_path, variant=variant), variant or None)
    said = whole_page(page(found))
    for role, graph in found.manifest.graphs.items():
        assert graph.file in said
        assert all(re.sub(r"\.0\.", ".L.", port.name) in said for port in graph.inputs if ".1." not in port.name)
        assert all(operator in said for operator in read_outline(found.file(role)).operators)
    assert isinstance(found.manifest, ForeignManifest)
    assert ("present" in said) == found.manifest.has_past
    assert "parity:" not in said
    assert "txport run FOLDER TEXT" in said
    graphs = [onnx.load(str(found.file(role))).graph for role in found.manifest.graphs]
    assert sum(part.bytes for part in parts_of(found)) == sum(map(held, graphs))


def held(graph: onnx.GraphProto) -> int:
    """Bytes of the weights of a graph and of its branches."""
    branches = [
        each for node in graph.node for attribute in node.attribute for each in (attribute.g, *attribute.graphs)
    ]
    return sum(onnx.numpy_helper.to_array(each).nbytes for each in graph.initializer) + sum(map(held, branches))


def test_weights_without_names_belong_to_the_node_that_reads_them(portable: Portable, tmp_path: Path) -> None:
    """Exporters call them onnx::MatMul_12, and the node /encoder/layers.0/fc1/MatMul."""
    folder = lay_out(portable("gpt2"), "merged", tmp_path / "foreign")
    model = onnx.load(str(folder / "decoder_model_merged.onnx"))
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    branches = [each.g for node in model.graph.node for each in node.attribute if each.HasField("g")]
    (reader, *_) = (node for graph in (model.graph, *branches) for node in graph.node if tensor.name in node.input)
    for node in (node for graph in (model.graph, *branches) for node in graph.node):
        node.input[:] = ["onnx::MatMul_12_merged_0" if each == tensor.name else each for each in node.input]
    reader.name = "/stack/layers.7/fc1/MatMul"
    tensor.name = "onnx::MatMul_12_merged_0"
    onnx.save(model, str(folder / "decoder_model_merged.onnx"))
    parts = {part.name: part.bytes for part in parts_of(open_bundle(folder))}
    assert parts["stack.layers.7"] == len(tensor.raw_data)


def test_a_page_replaces_no_file_of_the_folder(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "inspect", folders["marian"], "--html", folders["marian"] / "encoder_model.onnx")
    assert code == 2
    assert f"encoder_model.onnx is a file of {folders['marian']}, and --html would replace it" in err
