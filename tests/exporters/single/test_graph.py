"""`onnx/generate.onnx`: plain ONNX, its weights those of the other files, proven before it ships."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import txport
from tests.tiny import SAMPLES, edit_graph, reseal, tiny_config, tiny_model
from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.manifest import Manifest
from txport.bundles.reading import read_manifest
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.cli import main
from txport.errors import BundleError, RunError, UnsupportedError
from txport.exporters.check import nodes
from txport.exporters.export import export_graphs
from txport.models.names import MANIFEST
from txport.proof.parity.check import check
from txport.proof.proven import write
from txport.proof.verify.at_once import SINGLE
from txport.proof.verify.check import verify
from txport.search.options import SearchOptions
from txport.search.single import longest_new
from txport.targets.ports import DECODER, ENCODER, GENERATE

ALONE = """
import sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
ids = np.array([[4, 5, 6, 2], [7, 2, 0, 0]])
for beams in sys.argv[2:]:
    found = session.run(None, {
        "input_ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
        "prefix_ids": np.zeros((2, 0), np.int64),
        "max_new_tokens": np.array([9]),
        "num_beams": np.array([int(beams)]),
        "length_penalty": np.array([1.0], np.float32),
    })
    print([row[0][:length[0]].tolist() for row, length in zip(found[0], found[2])])
assert "txport" not in sys.modules
"""


@pytest.fixture(scope="module")
def single(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The session's checkpoint with a graph that searches by itself."""
    return txport.export(checkpoint, tmp_path_factory.mktemp("single") / "toy", single=True)


@pytest.fixture(scope="module")
def at_once(single: Bundle) -> txport.Model:
    return txport.load(single.path, single=True)


@pytest.fixture
def altered(single: Bundle, tmp_path: Path) -> Path:
    """A copy that a test may alter."""
    return Path(shutil.copytree(single.path, tmp_path / "bundle"))


def read(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(str(bundle.file(GENERATE)), load_external_data=False)


def test_it_is_plain_onnx_with_one_loop(single: Bundle) -> None:
    onnx.checker.check_model(str(single.file(GENERATE)), full_check=True)
    model = read(single)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18}
    assert {node.domain for node in nodes(model.graph)} == {""}
    control = [node.op_type for node in nodes(model.graph) if node.op_type in ("Loop", "If", "Scan")]
    assert control == ["Loop"]


@pytest.mark.parametrize("engine", ["ort", "reference", "openvino", "tract"])
def test_a_runtime_that_steps_does_not_look_at_it(engine: str, single: Bundle) -> None:
    pytest.importorskip({"ort": "onnxruntime", "reference": "onnx"}.get(engine, engine))
    expected = txport.load(single.path).search([[4, 5, 2]])[0][0].tokens
    model = txport.load(single.path, runtime=engine)
    assert model.search([[4, 5, 2]])[0][0].tokens == expected
    assert GENERATE not in runtimes.load(engine, single).placement()


def test_its_weights_lie_in_the_files_of_the_other_graphs(single: Bundle) -> None:
    beside = [tensor for tensor in read(single).graph.initializer if tensor.external_data]
    places = {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in beside}
    files = {each["location"] for each in places.values()}
    assert files == {"encoder_model.onnx_data", "decoder_model_merged.onnx_data"}
    assert not single.path.joinpath("onnx", "generate.onnx_data").exists()
    body = next(node for node in read(single).graph.node if node.op_type == "Loop").attribute[0].g
    assert not body.initializer
    once = sum(single.path.joinpath("onnx", name).stat().st_size for name in files)
    assert sum(int(each["length"]) for each in places.values()) <= once
    there = [
        (tensor.name, {entry.key: entry.value for entry in tensor.external_data})
        for role in (ENCODER, DECODER)
        for tensor in onnx.load(str(single.file(role)), load_external_data=False).graph.initializer
    ]
    assert all((name, place) in there for name, place in places.items())


def test_onnx_runtime_alone_generates_in_one_call(single: Bundle) -> None:
    command = [sys.executable, "-c", ALONE, str(single.file(GENERATE)), "1", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = txport.load(single.path)
    for beams, said in zip((1, 3), done.stdout.splitlines(), strict=True):
        found = model.search([[4, 5, 6, 2], [7, 2]], beams=beams, max_new_tokens=9)
        assert json.loads(said) == [list(each[0].tokens) for each in found]


def test_the_example_on_its_page_runs(single: Bundle, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "single-graph.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    shutil.copytree(single.path, tmp_path / "bundle")
    done = subprocess.run([sys.executable, "-c", example[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = txport.load(single.path).search([[4, 5, 6, 2], [7, 2]], beams=4, max_new_tokens=20)
    assert done.stdout.splitlines() == [str(list(each[0].tokens)) for each in found]


def test_the_driver_starts_the_other_graphs_only(single: Bundle) -> None:
    assert GENERATE in single.manifest.graphs
    assert GENERATE not in runtimes.load("ort", single).placement()
    assert set(runtimes.load_single("ort", single).placement()) == {GENERATE}


def test_the_longest_target_is_that_of_the_other_graphs() -> None:
    """Of a causal model, `max_length` counts the prompt; otherwise the start token."""
    options = SearchOptions(max_length=20)
    causal, other = (load_checkpoint(f"preset:{name}").facts for name in ("gpt2-tiny", "tiny"))
    assert [longest_new(options, causal, [5] * size, []) for size in (3, 10)] == [17, 10]
    assert [longest_new(options, other, [5] * 3, [6] * size) for size in (0, 4)] == [19, 15]


def test_a_model_that_is_loaded_so_finds_the_same(single: Bundle, at_once: txport.Model) -> None:
    driven = txport.load(single.path)
    for how in ({}, {"beams": 3, "nbest": 3}, {"max_new_tokens": 5}, {"max_length": 6, "beams": 2}):
        ones, others = (model.generate(SAMPLES, prefixes=["", "B", "CH D", ""], **how) for model in (driven, at_once))
        assert [[each.tokens for each in one.hypotheses] for one in ones] == [
            [each.tokens for each in other.hypotheses] for other in others
        ]
    assert at_once.generate(["bad", "xx"], unknown="skip")[1].output == ""


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda model: list(model.stream("bad")), "has no steps to stream"),
        (lambda model: list(model.score("bad", "B")), "has no steps to stream"),
        (lambda model: model.generate("bad", do_sample=True), "do_sample False, as it was exported, got True"),
        (lambda model: model.generate("bad", suppress_tokens=[5]), "suppress_tokens .*, as it was exported"),
        (lambda model: model.generate("bad", eos_token_id=5), "eos_token_id .*, as it was exported, got"),
        (lambda model: model.generate("bad", continuous=True), "continuous batching needs"),
        (lambda model: model.generate("bad", beams=2, patience=2.0), "patience 1.0, as it was exported"),
    ],
)
def test_what_the_graph_has_not_is_refused(
    call: Callable[[txport.Model], Any], why: str, at_once: txport.Model
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        call(at_once)


def constant(model: onnx.ModelProto, name: str, new: int) -> None:
    """Let a constant of the search be another number."""
    tensor = next(each for each in model.graph.initializer if each.name == f"search/{name}")
    changed = np.full_like(onnx.numpy_helper.to_array(tensor), new)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))


def body(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g


def swap(model: onnx.ModelProto, operator: str, other: str) -> None:
    """Let each operator of a kind in the search of a step be another."""
    found = [node for node in body(model).node if node.op_type == operator and node.name.startswith("search/")]
    assert found
    for node in found:
        node.op_type = other


FAULTS: dict[str, Callable[[onnx.ModelProto], None]] = {
    "another end token": lambda model: constant(model, "end_tokens", 3),
    "another start token": lambda model: constant(model, "start_token", 3),
    "lengths do not count": lambda model: swap(model, "Pow", "Max"),
    "sources are never done": lambda model: swap(model, "Or", "And"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_a_graph_that_searches_otherwise(fault: str, altered: Path) -> None:
    edit_graph(altered, GENERATE, FAULTS[fault])
    result = verify(altered)
    verdicts = {check.name: check.verdict for check in result.checks}
    assert verdicts.pop(SINGLE) == "fail"
    assert set(verdicts.values()) == {"pass"}


def test_parity_finds_another_end_token(altered: Path, checkpoint: Path) -> None:
    bundle = edit_graph(altered, GENERATE, FAULTS["another end token"])
    report = check(bundle, load_checkpoint(str(checkpoint)), {"ort": "cpu"})
    assert not report.passed
    assert {each.search for each in report.tokens if not each.passed} <= {"single greedy", "single beam 4"}


def test_parity_finds_another_weight(altered: Path, checkpoint: Path) -> None:
    def spoil(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name.endswith("query.weight"))
        tensor.CopyFrom(onnx.numpy_helper.from_array(1.01 * onnx.numpy_helper.to_array(tensor), tensor.name))

    report = check(edit_graph(altered, GENERATE, spoil), load_checkpoint(str(checkpoint)), {"ort": "cpu"})
    assert {each.runtime for each in report.tensors if not each.passed} == {GENERATE}


@pytest.mark.parametrize("runtime", ["ort", "reference"])
def test_it_is_verified_on_every_runtime(runtime: str, single: Bundle) -> None:
    assert verify(single.path, runtime=runtime).checks[-1].verdict == "pass"


def test_outputs_that_are_none_of_a_search_are_refused(altered: Path) -> None:
    edit_graph(altered, GENERATE, lambda model: constant(model, "pad_token", 99))
    with pytest.raises(RunError, match="generate graph"):
        txport.load(altered, single=True).generate(SAMPLES, beams=4, nbest=4)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("single", 1, "single must be true or false"),
        ("target", "cpu", "single needs standard ONNX operators"),
        ("single", False, "its graphs or ports are not those"),
    ],
)
def test_a_manifest_that_can_t_be_is_refused(key: str, value: Any, why: str, altered: Path) -> None:
    values = json.loads((altered / MANIFEST).read_text(encoding="utf-8"))
    (altered / MANIFEST).write_text(json.dumps({**values, key: value}), encoding="utf-8")
    with pytest.raises(BundleError, match=why):
        read_manifest(altered)


def test_only_this_graph_may_have_a_loop(altered: Path) -> None:
    bundle = load_bundle(altered)
    shutil.copyfile(bundle.file(GENERATE), bundle.file(DECODER))
    with pytest.raises(BundleError, match="has the operator Loop, which may not terminate"):
        reseal(altered)


def test_a_bundle_without_it_says_how_to_get_it(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="no graph that searches by itself; `txport export --single` makes one"):
        txport.load(bundle.path, single=True)


@pytest.mark.parametrize("opset", [18, 21, 25])
def test_later_opsets_have_it_too(opset: int, checkpoint: Path, tmp_path: Path) -> None:
    manifest = export_graphs(load_checkpoint(str(checkpoint)), tmp_path, single=True, opset=opset)
    assert isinstance(manifest, Manifest)
    assert manifest.to_dict()["single"] is True


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["preset:tiny", "--target", "cpu"], "the cpu target uses others; export it with --target portable"),
        (["preset:bert-tiny"], "this model is encoder-only, and its model.onnx is already a single graph"),
        (["preset:tiny", "--weights", "none"], "single reads the weights of the other graphs"),
    ],
)
def test_what_has_no_single_graph_is_refused_in_one_line(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", arguments[0], str(tmp_path / "out"), "--single", *arguments[1:]])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("generation", "why"),
    [
        ({"do_sample": True, "top_k": 50}, "draw samples"),
        ({"beams": 4, "beam_groups": 2, "diversity_penalty": 1.0}, "have 2 groups of beams"),
        ({"bad_words_ids": [[4, each % 20] for each in range(65)]}, "forbid 65 sequences"),
    ],
)
def test_defaults_that_it_can_t_express_are_refused(
    generation: dict[str, Any], why: str, checkpoint: Path, tmp_path: Path
) -> None:
    loaded = replace(load_checkpoint(str(checkpoint)), generation=generation)
    with pytest.raises(UnsupportedError, match=f"{why}.*change its generation_config.json"):
        export_graphs(loaded, tmp_path, single=True)


def test_a_tiny_model_of_its_own_defaults_passes_by_them(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(), seed=2))
    checkpoint = load_checkpoint(str(tmp_path / "toy"))
    generation = {"min_new_tokens": 3, "repetition_penalty": 1.3, "beams": 4, "early_stopping": True}
    (tmp_path / "out").mkdir()
    bundle = write(replace(checkpoint, generation=generation), tmp_path / "out", single=True)
    assert check(bundle, checkpoint, {"ort": "cpu"}).passed
