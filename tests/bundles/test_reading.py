"""What a manifest says is believed only as far as the rest of the bundle bears it out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import txport
import txport.api.model
import txport.api.release
from tests.tiny import edit_graph, reseal, tiny_config, tiny_facts, tiny_model, update_hashes
from txport import runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.reading import least_bytes, read_manifest
from txport.checkpoints.checkpoint import save_checkpoint
from txport.errors import BundleError, ParityError, RunError
from txport.models.names import MANIFEST
from txport.proof.verify.check import verify
from txport.runtimes.base import GraphRuntime
from txport.targets.ports import DECODER, ENCODER

Json = dict[str, Any]


@pytest.fixture(scope="module")
def fused(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose weights lie in a file of their own."""
    return txport.export(checkpoint, tmp_path_factory.mktemp("fused") / "toy", target="cpu")


def change(path: Path, edit: Callable[[Json], None]) -> Path:
    values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    edit(values)
    (path / MANIFEST).write_text(json.dumps(values), encoding="utf-8")
    return path


def rename(values: Json, old: str, new: str) -> None:
    values["files"][new] = values["files"].pop(old)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.bin",
        "/etc/passwd",
        "onnx/../../a",
        "./samples.txt",
        "onnx//a",
        "a\\b",
        "c:a",
        "a\x1b[2J",
        "a\u202eb",
        "",
    ],
)
def test_a_name_that_may_lead_out_of_the_bundle_is_refused(name: str, copied: Path) -> None:
    change(copied, lambda values: rename(values, "samples.txt", name))
    with pytest.raises(BundleError, match="is not the plain name of a file in the bundle"):
        load_bundle(copied)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"offset": -64}, "offset must not be negative, got -64"),
        ({"offset": 10**15}, "does not lie in"),
        ({"offset": 2}, "does not lie in"),
        ({"dims": [2**40, 2**40]}, "does not lie in"),
        ({"dims": [-1, 16]}, "can't be of type 'float32' with dims"),
        ({"dims": ["16"]}, "can't be of type"),
        ({"dtype": "object"}, "can't be of type 'object'"),
        ({"dtype": "float3000"}, "can't be of type"),
        ({"file": "../weights.bin"}, "'../weights.bin' is missing"),
        ({"offset": True}, "offset must be int, got True"),
    ],
)
def test_a_shared_weight_lies_in_a_file_of_the_bundle(entry: Json, message: str, fused: Bundle, tmp_path: Path) -> None:
    path = Path(shutil.copytree(fused.path, tmp_path / "bundle"))
    name = next(iter(fused.manifest.shared))
    change(path, lambda values: values["shared"][name].update(entry))
    with pytest.raises(BundleError, match=message):
        load_bundle(path)


@pytest.mark.parametrize(
    ("side", "missing"), [("facts", "width"), ("source", "longest"), ("target", "ends"), ("attention", "heads")]
)
def test_facts_are_whole(side: str, missing: str, copied: Path) -> None:
    change(copied, lambda values: (values["facts"] if side == "facts" else values["facts"][side]).pop(missing))
    with pytest.raises(BundleError, match=rf"is damaged: '{side}\.{missing}' is missing"):
        load_bundle(copied)


@pytest.mark.parametrize("sizes", [{"target_vocab_size": 10**6, "source_vocab_size": 10**6}, {"d_model": 1 << 15}])
def test_files_that_are_too_small_for_the_facts_are_refused(sizes: Json, copied: Path) -> None:
    manifest = read_manifest(copied)
    larger = replace(manifest, facts=tiny_facts(**sizes)).to_dict()
    change(copied, lambda values: values.update(facts=larger["facts"], graphs=larger["graphs"]))
    with pytest.raises(BundleError, match=r"its files have .* bytes, and a model of its facts at least"):
        load_bundle(copied)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_files_are_never_too_small_for_their_own_config(target: str, bundle: Bundle, fused: Bundle) -> None:
    made = bundle if target == "portable" else fused
    assert least_bytes(made.manifest) <= made.size


def external(location: str) -> Callable[[Any], None]:
    """Let the data of the largest tensor of a graph lie in another file."""

    def edit(model: Any) -> None:
        tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        for key, value in (("location", location), ("offset", "0"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)

    return edit


@pytest.mark.parametrize(
    "location", ["stray.bin", "../../stray.bin", "/etc/passwd", "*/_ORT_MEM_ADDR_/*", "decoder_model_merged.onnx"]
)
def test_a_graph_reads_only_files_that_have_a_hash(location: str, copied: Path) -> None:
    (copied / "onnx/stray.bin").write_bytes(bytes(1 << 16))
    (copied.parent / "stray.bin").write_bytes(bytes(1 << 16))
    with pytest.raises(BundleError, match=r"onnx/decoder_model_merged\.onnx reads .*, which is no file of weights"):
        edit_graph(copied, DECODER, external(location))
    assert verify(copied).wrong.startswith("files: onnx/decoder_model_merged.onnx reads")


def test_a_graph_that_may_run_for_ever_is_refused(copied: Path) -> None:
    def loop(model: Any) -> None:
        branch = model.graph.node.add(op_type="If").attribute.add(name="then_branch", type=5).g
        branch.node.add(op_type="Loop")

    with pytest.raises(BundleError, match="has the operator Loop, which may not terminate"):
        edit_graph(copied, ENCODER, loop)


def test_a_graph_with_local_functions_is_refused(copied: Path) -> None:
    """Each nested one may double the operators that a runtime makes of it."""

    def call(model: Any) -> None:
        node = onnx.helper.make_node("Identity", ["x"], ["y"])
        opsets = [onnx.helper.make_opsetid("", 18)]
        model.functions.append(onnx.helper.make_function("here", "Again", ["x"], ["y"], [node], opsets))

    with pytest.raises(BundleError, match=r"encoder_model\.onnx has 1 local functions, and txport writes none"):
        edit_graph(copied, ENCODER, call)


def test_a_graph_has_the_opset_of_its_manifest(copied: Path) -> None:
    def newer(model: Any) -> None:
        model.opset_import[0].version = 99

    with pytest.raises(BundleError, match=r"encoder_model\.onnx has opset 99, the manifest says 18"):
        edit_graph(copied, ENCODER, newer)


def test_a_node_has_all_its_inputs(copied: Path) -> None:
    def leave_out(model: Any) -> None:
        model.graph.node.add(op_type="Max", input=["", "input_ids"], output=["most"])

    with pytest.raises(BundleError, match="leaves out an input of Max, which needs them all"):
        edit_graph(copied, ENCODER, leave_out)


HIDDEN = {  # fields that ONNX Runtime's reader of protobuf takes for others than a plain reader does
    "an opset whose domain is a number": b"\x42\x04\x08\x03\x10\x11",
    "a field beyond all": b"\xba\x80\x80\x80\x10\x00",
    "a field without a number": b"\x02\x00",
    "a graph that is a number": b"\x38\x05",
}


@pytest.mark.parametrize("field", HIDDEN)
def test_what_readers_take_for_different_things_is_refused(field: str, bundle: Bundle, copied: Path) -> None:
    file = copied / bundle.manifest.graphs[ENCODER].file
    file.write_bytes(file.read_bytes() + HIDDEN[field])
    with pytest.raises(BundleError, match=r"encoder_model\.onnx is not an ONNX file: "):
        reseal(copied)


def test_layers_that_are_alike_are_held_once(tmp_path: Path) -> None:
    model = tiny_model(tiny_config(encoder_layers=6))
    for layer in model.encoder:
        layer.load_state_dict(model.encoder[0].state_dict())
    save_checkpoint(tmp_path / "alike", model)
    made = txport.export(tmp_path / "alike", tmp_path / "out", target="cpu")
    assert verify(made.path).passed


def test_a_bundle_of_links_is_as_good(fused: Bundle, tmp_path: Path, checkpoint: Path) -> None:
    """As Hugging Face's cache holds it: each file is a link into a store of blobs, named by their hashes."""
    store = tmp_path / "blobs"
    linked = tmp_path / "snapshot"
    store.mkdir()
    for name in [*fused.manifest.files, MANIFEST]:
        blob = store / f"{abs(hash(name)):x}"
        shutil.copyfile(fused.path / name, blob)
        (linked / name).parent.mkdir(parents=True, exist_ok=True)
        (linked / name).symlink_to(os.path.relpath(blob, (linked / name).parent))
    found = load_bundle(linked)
    assert verify(linked).passed
    report = txport.api.model.parity(found, checkpoint, {"ort": "cpu"})
    assert report.passed
    assert txport.api.release.bisect(found, checkpoint) is None
    (store / f"{abs(hash('onnx/weights.bin')):x}").write_bytes(b"")
    with pytest.raises(BundleError, match=r"onnx/weights\.bin has 0 bytes"):
        load_bundle(linked)


def test_a_bundle_that_is_replaced_while_it_is_verified_is_verified_again(copied: Path, tmp_path: Path) -> None:
    """Otherwise the goldens of one bundle would be held against the graphs of the other."""
    save_checkpoint(tmp_path / "checkpoint", tiny_model(tiny_config(), seed=1))
    other = txport.export(tmp_path / "checkpoint", tmp_path / "other").path
    replacements = 1

    def load(*arguments: Any, **options: Any) -> GraphRuntime:
        nonlocal replacements
        if replacements:
            replacements -= 1
            for old, new in ((copied, tmp_path / "old"), (other, copied), (tmp_path / "old", other)):
                old.rename(new)
        return runtimes.load(*arguments, **options)

    assert verify(copied, load=load).passed
    replacements = 100
    with pytest.raises(
        BundleError, match="was replaced 3 times while it was read; try again when no process writes it"
    ):
        verify(copied, load=load)


@pytest.mark.parametrize("role", [ENCODER, DECODER])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_graph_that_is_cut_off_is_no_graph(role: str, share: float, bundle: Bundle, copied: Path) -> None:
    file = copied / bundle.manifest.graphs[role].file
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BundleError, match=rf"{file.name} is not an ONNX file"):
        reseal(copied)
    assert verify(copied).wrong.startswith("files: ")


def exchange(path: Path, bundle: Bundle, change: Callable[[bytes], bytes]) -> None:
    files = [path / bundle.manifest.graphs[role].file for role in (ENCODER, DECODER)]
    one, other = (change(file.read_bytes()) for file in files)
    files[0].write_bytes(other)
    files[1].write_bytes(one)
    update_hashes(path)


def test_graphs_in_one_anothers_place_are_refused(bundle: Bundle, copied: Path) -> None:
    exchange(copied, bundle, lambda whole: whole)
    with pytest.raises(BundleError, match=r"says 'decoder' for txport\.role, the manifest 'encoder'"):
        txport.load(copied)
    assert verify(copied).wrong.startswith("files: ")


def test_graphs_in_one_anothers_place_that_say_nothing_of_themselves_are_refused(bundle: Bundle, copied: Path) -> None:
    def silent(whole: bytes) -> bytes:
        model = onnx.load_from_string(whole)
        model.ClearField("metadata_props")
        return model.SerializeToString()

    exchange(copied, bundle, silent)
    with pytest.raises(BundleError, match=r"does not hold the graphs of its manifest: .*input .* is missing"):
        txport.load(copied)
    assert verify(copied).wrong.startswith("ports: ")


def fail_while_running(model: Any) -> None:
    """An embedding of one token: the graph loads, has its ports, and looks a second one up."""
    table = next(each for each in model.graph.initializer if each.name == "projection.weight")
    table.raw_data = table.raw_data[: 4 * table.dims[1]]
    table.dims[0] = 1


def test_a_graph_that_fails_while_it_runs_is_an_error_of_ours(copied: Path, checkpoint: Path) -> None:
    broken = edit_graph(copied, ENCODER, fail_while_running)
    with pytest.raises(RunError, match=r"the encoder graph does not run on ONNX Runtime: .*the bundle is damaged"):
        txport.load(copied).generate("bad")
    with pytest.raises(RunError, match="does not run on onnx's evaluator"):
        txport.load(copied, runtime="reference").generate("bad")
    assert verify(copied).wrong.startswith("logits: it does not run")
    with pytest.raises(ParityError, match="the encoder graph does not run"):
        txport.api.model.parity(broken, checkpoint, {"ort": "cpu"})
    culprit = txport.api.release.bisect(broken, checkpoint)
    assert culprit is not None
    assert culprit.graph == "encoder"
