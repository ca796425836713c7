"""What graphs say of themselves: all of it, the same as the manifest, and nothing that contradicts it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bundles import drivers
from tests.tiny import tiny_facts, update_hashes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.graphs import read_outline
from txport.bundles.manifest import Manifest
from txport.bundles.metadata import contradictions, metadata
from txport.checkpoints.folder import preset_config
from txport.errors import BundleError
from txport.models import architecture
from txport.models.names import MANIFEST
from txport.system.documents import write_json
from txport.targets.ports import DECODER, ENCODER, SELECT

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


def manifest_of(**values: object) -> Manifest:
    given = {"target": "portable", "precision": "fp32", "opset": 18, "architecture": "transformer", "config": {}}
    about = {"checkpoint": {"name": "toy", "sha256": "0" * 64}, "tools": {}, "facts": tiny_facts()}
    return Manifest(**{**given, **about, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [ENCODER, DECODER, SELECT])
def test_each_graph_says_what_the_manifest_does(role: str, bundle: Bundle) -> None:
    found = read_outline(bundle.file(role)).metadata
    assert found == metadata(bundle.manifest, role)
    assert (found["txport.task"], found["txport.role"]) == ("seq2seq", role)
    assert (found["txport.start"], found["txport.ends"], found["txport.pad"]) == ("1", "2", "0")


def test_onnx_reads_the_same_metadata(bundle: Bundle) -> None:
    model = onnx.load(str(bundle.file(DECODER)))
    assert {entry.key: entry.value for entry in model.metadata_props} == dict(
        read_outline(bundle.file(DECODER)).metadata
    )


Edit = Callable[[onnx.ModelProto], None]


def said(key: str, value: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        next(entry for entry in model.metadata_props if entry.key == key).value = value

    return edit


def edited(path: Path, edit: Edit) -> None:
    file = load_bundle(path).file(DECODER)
    model = onnx.load(str(file))
    edit(model)
    onnx.save(model, str(file))
    update_hashes(path)


@pytest.mark.parametrize(
    ("key", "value"), [("ends", "3"), ("longest", "9999"), ("task", "causal"), ("role", "encoder")]
)
def test_a_contradiction_is_refused(key: str, value: str, copied: Path) -> None:
    edited(copied, said(f"txport.{key}", value))
    with pytest.raises(BundleError, match=rf"says '{value}' for txport\.{key}, the manifest '"):
        load_bundle(copied)


def test_a_key_that_stands_twice_is_refused(copied: Path) -> None:
    edited(copied, lambda model: model.metadata_props.add(key="txport.ends", value="2") and None)
    with pytest.raises(BundleError, match="its metadata has a key twice"):
        load_bundle(copied)


def test_a_manifest_whose_ids_were_edited_is_refused(copied: Path) -> None:
    values = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    values["facts"]["target"]["ends"] = [3]
    write_json(copied / MANIFEST, values)
    with pytest.raises(BundleError, match=r"says '2' for txport\.ends, the manifest '3'"):
        load_bundle(copied)


def test_other_metadata_and_none_at_all_are_no_contradiction(copied: Path) -> None:
    edited(copied, lambda model: model.metadata_props.add(key="note", value="of the user's") and None)
    load_bundle(copied)
    edited(copied, lambda model: model.ClearField("metadata_props"))
    load_bundle(copied)


@given(labels=st.lists(st.text(), min_size=1, max_size=4), ends=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_values_come_back_as_they_were(labels: list[str], ends: list[int]) -> None:
    facts = tiny_facts()
    assert facts.target is not None
    facts = dataclasses.replace(facts, labels=tuple(labels), target=dataclasses.replace(facts.target, ends=tuple(ends)))
    found = metadata(manifest_of(facts=facts, generation={"suppress_tokens": ends}), DECODER)
    assert json.loads(found["txport.labels"]) == labels
    assert [int(each) for each in found["txport.ends"].split()] == ends
    assert json.loads(found["txport.generation"]) == {"suppress_tokens": ends}
    assert all(isinstance(value, str) for value in found.values())
    assert list(contradictions(found, manifest_of(facts=facts), DECODER)) == []


def test_the_page_on_embedding_has_every_key() -> None:
    keys = set()
    windows = (preset_config("llama-windows-tiny"), {})
    for config, generation in (*drivers.configs().values(), windows):
        facts = architecture.of(config).build(config).facts
        for target in ("portable", "cpu"):
            manifest = manifest_of(facts=facts, target=target, generation=generation)
            keys |= {key for role in manifest.graphs for key in metadata(manifest, role)}
    assert "txport.windows" in keys
    told = PAGE.read_text(encoding="utf-8")
    assert [key for key in sorted(keys) if f"`{key}`" not in told] == []
