from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.tiny import tiny_config, tiny_facts
from txport.bundles.bundle import Bundle, load_bundle, seal
from txport.bundles.forms import INVARIANT, PLAIN, ROWS, Form, Stored, blocks_of
from txport.bundles.manifest import FORMAT, Manifest
from txport.bundles.reading import read_manifest
from txport.errors import BundleError
from txport.models.names import MANIFEST
from txport.targets.ports import DECODER, ENCODER, SELECT

RIGHT = {"weights": ["a.weight"], "form": INVARIANT.to_dict(), "scales": "a.scale"}


def tiny_manifest(**changes: Any) -> Manifest:
    checkpoint = {"name": "toy", "sha256": "0" * 64}
    tools = {"txport": "0.1.0"}
    values = {"target": "portable", "precision": "fp32", "opset": 18, "checkpoint": checkpoint, "tools": tools}
    values |= {"architecture": "transformer", "config": tiny_config().to_dict(), "facts": tiny_facts()}
    return Manifest(**{**values, "parity": {"verdict": "pass"}, **changes})


def stand_in(role: str) -> bytes:
    """An ONNX file of a size that a graph may have."""
    return onnx.ModelProto(
        doc_string=f"{role:20000}", opset_import=[onnx.helper.make_opsetid("", 18)]
    ).SerializeToString()


def seal_stand_ins(folder: Path, manifest: Manifest) -> Bundle:
    """A bundle as far as its manifest and the sizes of its files can tell: the graphs hold a text."""
    for graph in manifest.graphs.values():
        (folder / graph.file).parent.mkdir(parents=True, exist_ok=True)
        (folder / graph.file).write_bytes(stand_in(graph.role))
    (folder / "samples.txt").write_text("bad\nchief\n", encoding="utf-8")
    return seal(folder, manifest)


@pytest.fixture
def sealed(tmp_path: Path) -> Bundle:
    return seal_stand_ins(tmp_path / "bundle", tiny_manifest())


@pytest.fixture
def quantised(tmp_path: Path) -> Bundle:
    return seal_stand_ins(tmp_path / "quantised", tiny_manifest(target="cpu", precision="int8"))


def change_manifest(bundle: Bundle, **changes: Any) -> None:
    values = json.loads((bundle.path / MANIFEST).read_text(encoding="utf-8"))
    (bundle.path / MANIFEST).write_text(json.dumps({**values, **changes}), encoding="utf-8")


def test_round_trip(sealed: Bundle) -> None:
    loaded = load_bundle(sealed.path)
    assert loaded == sealed
    assert loaded.manifest.parity == {"verdict": "pass"}
    assert loaded.samples == ["bad", "chief"]
    assert loaded.size == sum(file.stat().st_size for file in sealed.path.rglob("*.*") if file.name != MANIFEST)
    for role in (ENCODER, DECODER, SELECT):
        assert loaded.file(role).read_bytes() == stand_in(role)


def test_seal_lists_every_file_but_itself(sealed: Bundle) -> None:
    again = seal(sealed.path, sealed.manifest)
    assert again.manifest == sealed.manifest
    files = {path.relative_to(sealed.path).as_posix() for path in sealed.path.rglob("*") if path.is_file()}
    assert set(again.manifest.files) == files - {MANIFEST}


def test_seal_twice_gives_the_same_bytes(sealed: Bundle) -> None:
    before = (sealed.path / MANIFEST).read_bytes()
    seal(sealed.path, sealed.manifest)
    assert (sealed.path / MANIFEST).read_bytes() == before


FILES = ["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "onnx/select_rows.onnx", "samples.txt"]


@pytest.mark.parametrize("name", FILES)
def test_wrong_file_is_named(name: str, sealed: Bundle) -> None:
    file = sealed.path / name
    whole = file.read_bytes()
    faults = {
        bytes([whole[0] ^ 1]) + whole[1:]: f"{name} was altered",
        whole[:-1]: f"{name} has {len(whole) - 1} bytes, expected {len(whole)}",
        whole + b"\0": f"{name} has {len(whole) + 1} bytes, expected {len(whole)}",
        b"": f"{name} has 0 bytes, expected {len(whole)}",
    }
    for content, message in faults.items():
        file.write_bytes(content)
        with pytest.raises(BundleError, match=message) as caught:
            load_bundle(sealed.path)
        assert not any(other in str(caught.value) for other in FILES if other != name)
    file.unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(sealed.path)


@pytest.mark.parametrize("name", ["tokenizer.json", "target_tokenizer.json", "samples.txt"])
def test_file_that_was_added_is_named(name: str, sealed: Bundle) -> None:
    unlisted = {file: entry for file, entry in sealed.manifest.files.items() if file != name}
    values = json.loads((sealed.path / MANIFEST).read_text())
    (sealed.path / MANIFEST).write_text(json.dumps({**values, "files": unlisted}))
    (sealed.path / name).write_text("{}")
    with pytest.raises(BundleError, match=f"{name} was added"):
        load_bundle(sealed.path)


def test_all_wrong_files_at_once(sealed: Bundle) -> None:
    (sealed.path / FILES[0]).unlink()
    (sealed.path / FILES[1]).write_bytes(b"")
    with pytest.raises(BundleError, match=f"{FILES[1]} has 0 bytes, expected 20010; {FILES[0]} is missing; export it"):
        load_bundle(sealed.path)


def test_no_bundle(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BundleError, match=r"is not a bundle: txport\.json is missing; `txport export"):
            load_bundle(path)


@pytest.mark.parametrize(
    ("known", "fix"), [(FORMAT + 1, "update txport"), (0, "export it again"), ("1", "export it again"), (None, "")]
)
def test_other_formats(known: Any, fix: str, sealed: Bundle) -> None:
    change_manifest(sealed, format=known)
    with pytest.raises(BundleError, match=rf"has bundle format {known!r}, this txport reads format {FORMAT}; {fix}"):
        load_bundle(sealed.path)


NO_MANIFESTS = [b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b'{"format": %d}' % FORMAT]


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_garbage_manifest(text: bytes, sealed: Bundle) -> None:
    (sealed.path / MANIFEST).write_bytes(text)
    with pytest.raises(BundleError, match=r"txport\.json"):
        load_bundle(sealed.path)


def test_a_key_that_is_missing_is_damage(sealed: Bundle) -> None:
    values = json.loads((sealed.path / MANIFEST).read_text(encoding="utf-8"))
    needed = ("target", "precision", "opset", "architecture", "config", "facts", "checkpoint", "tools", "rows")
    for key in (*needed, "graphs", "files"):
        fewer = {name: value for name, value in values.items() if name != key}
        (sealed.path / MANIFEST).write_text(json.dumps(fewer), encoding="utf-8")
        with pytest.raises(BundleError, match=r"txport\.json"):
            read_manifest(sealed.path)


@pytest.mark.parametrize("junk", [None, 7, "text", [], ["text"], {}, {"text": 1}, {FILES[0]: {}}], ids=repr)
@pytest.mark.parametrize("key", ["target", "precision", "facts", "checkpoint", "graphs", "files"])
def test_manifest_with_junk_is_refused_not_a_crash(key: str, junk: Any, sealed: Bundle) -> None:
    change_manifest(sealed, **{key: junk})
    with pytest.raises(BundleError, match=r"txport\.json"):
        load_bundle(sealed.path)


@pytest.mark.parametrize("junk", [None, 7, [], ["text"], True], ids=repr)
@pytest.mark.parametrize("key", ["architecture", "config"])
def test_what_is_only_told_of_the_model_has_its_type(key: str, junk: Any, sealed: Bundle) -> None:
    change_manifest(sealed, **{key: junk})
    with pytest.raises(BundleError, match=rf"txport\.json is damaged: {key} must be "):
        load_bundle(sealed.path)


def test_rows_are_a_number_or_none(quantised: Bundle) -> None:
    for rows in (None, 8):
        change_manifest(quantised, rows=rows)
        assert load_bundle(quantised.path).manifest.rows == rows
    change_manifest(quantised, rows="8")
    with pytest.raises(BundleError, match=r"txport\.json is damaged: rows must be int \| None, got '8'"):
        load_bundle(quantised.path)


def test_a_bundle_says_how_much_of_it_is_in_fp32(quantised: Bundle) -> None:
    kept = {
        "kept": ["a.weight"],
        "wider": {},
        "share": 0.1234,
        "limit": 0.25,
        "bytes": 9,
        "bytes_before": 7,
        "loss_before": 0.2,
        "divergence": 0.1,
        "divergence_before": 0.3,
    }
    for given, said in (({}, "int8"), (kept, "int8 (12.3 % of its weights in fp32)")):
        change_manifest(quantised, kept_in_fp32=given)
        assert load_bundle(quantised.path).manifest.described_precision == said
    for junk in ({"kept": ["a.weight"]}, {**kept, "share": "12 %"}, {**kept, "limit": None}):
        change_manifest(quantised, kept_in_fp32=junk)
        with pytest.raises(BundleError, match=r"txport\.json is damaged"):
            load_bundle(quantised.path)


@pytest.mark.parametrize("change", [{"rows": 8}, {"weights": {"a": RIGHT}}])
def test_what_is_quantised_is_said_where_something_is(change: dict[str, Any], sealed: Bundle) -> None:
    change_manifest(sealed, **change)
    with pytest.raises(BundleError, match="a bundle of portable fp32 has no quantised weights"):
        load_bundle(sealed.path)


def test_what_initializers_are_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    table = {
        "a.{b,c}.weight": Stored(("a.b.weight", "a.c.weight"), INVARIANT, "a.scale"),
        "tokens": Stored(("tokens.weight",), blocks_of(4, 32), "tokens.scale", "tokens.lookup"),
        "kept.weight": Stored(("kept.weight",), PLAIN),
        "a.{b,c}.bias": Stored(("a.b.bias", "a.c.bias")),
    }
    sealed = seal_stand_ins(tmp_path / "bundle", tiny_manifest(target="cpu", precision="int4", weights=table))
    manifest = load_bundle(sealed.path).manifest
    assert manifest.weights == table
    assert list(manifest.quantization) == ["a.{b,c}.weight", "tokens", "kept.weight"]
    assert manifest.forms["a.c.weight"] == INVARIANT
    assert "a.c.bias" not in manifest.forms


@pytest.mark.parametrize(
    "junk",
    [
        None,
        "int8 rows",
        {},
        {"form": INVARIANT.to_dict(), "scales": "a.scale"},
        {"weights": []},
        {"weights": "a.weight"},
        {"weights": [1]},
        {"weights": ["a.weight", "a.weight"]},
        {**RIGHT, "more": 1},
        {**RIGHT, "scales": 1},
        {"weights": ["a.weight"], "form": INVARIANT.to_dict()},
        {"weights": ["a.weight"], "scales": "a.scale"},
        {**RIGHT, "lookup_scales": "a.lookup"},
        {**RIGHT, "form": "int8 invariant"},
        {**RIGHT, "form": {"kind": "invariant"}},
        {**RIGHT, "form": {"kind": ["invariant"], "bits": 8, "block": None}},
        {**RIGHT, "form": {"kind": "invariant", "bits": 4, "block": None}},
        {**RIGHT, "form": {"kind": "invariant", "bits": True, "block": None}},
        {**RIGHT, "form": {"kind": "invariant", "bits": 8, "block": 16}},
        {**RIGHT, "form": {"kind": "blocks", "bits": 8, "block": None}},
        {**RIGHT, "form": {"kind": "blocks", "bits": 8, "block": 10**12}},
        {**RIGHT, "form": {"kind": "blocks", "bits": 16, "block": 16}},
        {**RIGHT, "form": {"kind": "\x1b[2J", "bits": 8, "block": None}},
    ],
    ids=repr,
)
def test_what_no_initializer_can_be_is_refused_in_one_line(junk: Any, quantised: Bundle) -> None:
    change_manifest(quantised, weights={"a": RIGHT})
    assert load_bundle(quantised.path).manifest.forms == {"a.weight": INVARIANT}
    change_manifest(quantised, weights={"a": junk})
    with pytest.raises(BundleError, match=r"^[^\n\x1b]*txport\.json is damaged: [^\n\x1b]*$"):
        load_bundle(quantised.path)


def test_no_weight_lies_in_two_initializers(quantised: Bundle) -> None:
    change_manifest(quantised, weights={"a": RIGHT, "b": {"weights": ["a.weight"]}})
    with pytest.raises(BundleError, match=r"the weight 'a\.weight' is in two initializers"):
        load_bundle(quantised.path)


def test_forms_say_what_they_are() -> None:
    assert [form.describe() for form in (PLAIN, ROWS, INVARIANT)] == ["fp32", "int8 rows", "int8 invariant"]
    assert blocks_of(4, 32).describe() == "4-bit blocks of 32"
    assert Form.from_dict(blocks_of(8, 128).to_dict()) == blocks_of(8, 128)
    with pytest.raises(ValueError, match="unknown storage form: 'blocks' with bits 8 and block 48"):
        blocks_of(8, 48)


def test_file_entries_with_junk(sealed: Bundle) -> None:
    for junk in (None, "text", {}, {"sha256": 1}, {"bytes": "1", "sha256": None}):
        change_manifest(sealed, files={**sealed.manifest.files, "samples.txt": junk})
        with pytest.raises(BundleError, match=r"txport\.json|samples\.txt"):
            load_bundle(sealed.path)


def test_other_ports(sealed: Bundle) -> None:
    graphs = sealed.manifest.to_dict()["graphs"]
    graphs[DECODER]["inputs"].reverse()
    change_manifest(sealed, graphs=graphs)
    with pytest.raises(BundleError, match="its graphs or ports are not those that target 'portable' has"):
        load_bundle(sealed.path)


def test_unknown_target_and_precision(sealed: Bundle) -> None:
    for change in ({"target": "npu"}, {"precision": "int2"}):
        change_manifest(sealed, **change)
        with pytest.raises(BundleError, match=r"txport\.json"):
            load_bundle(sealed.path)
        change_manifest(sealed, target="portable")


def test_graph_without_hash(sealed: Bundle) -> None:
    files = {name: entry for name, entry in sealed.manifest.files.items() if name != FILES[0]}
    change_manifest(sealed, files=files)
    with pytest.raises(BundleError, match=f"it lists no hash for {FILES[0]}"):
        load_bundle(sealed.path)
