"""Usual causes of a checkpoint that does not fit: what is removed and said, and what is named with the way out."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.recorded import FAMILIES
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.importing.fit import fit
from txport.errors import CheckpointError, ConfigError
from txport.models.names import CONFIG, PICKLE, WEIGHTS


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FAMILIES / "llama", tmp_path / "llama"))


def rewrite(folder: Path, weights: dict[str, Tensor], **config: Any) -> None:
    save_file(weights, folder / WEIGHTS)
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(values | config))


@pytest.mark.parametrize(
    "prefix",
    [
        "_orig_mod.",
        "module.",
        "_orig_mod.module.",
        "module._orig_mod.",
        "model._orig_mod.",
        "base_model.model.",
        "my.own.net.",
    ],
)
def test_a_prefix_of_all_names_is_removed_and_said(prefix: str, copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = load_file(copied / WEIGHTS)
    whole = dict(load_checkpoint(str(copied)).tensors)
    rewrite(copied, {prefix + name: tensor for name, tensor in weights.items()})
    with caplog.at_level(logging.WARNING):
        found = dict(load_checkpoint(str(copied)).tensors)
    assert found.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())
    assert f"all names begin with {prefix}, which is removed" in caplog.text


def test_layers_that_were_compiled_one_by_one_are_read(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = load_file(copied / WEIGHTS)
    whole = dict(load_checkpoint(str(copied)).tensors)
    rewrite(copied, {name.replace(".mlp.", "._orig_mod.mlp."): tensor for name, tensor in weights.items()})
    found = load_checkpoint(str(copied))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.tensors)
    assert "names contain _orig_mod., which is removed" in caplog.text


def test_a_prefix_does_not_hide_that_tensors_are_missing(copied: Path) -> None:
    weights = load_file(copied / WEIGHTS)
    del weights["model.norm.weight"]
    rewrite(copied, {f"module.{name}": tensor for name, tensor in weights.items()})
    with pytest.raises(CheckpointError, match=r"does not fit its config: .*missing decoder_norm\.weight"):
        load_checkpoint(str(copied))


def test_tied_weights_of_t5_are_found_behind_a_prefix(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "flan-t5", tmp_path / "t5"))
    weights = load_file(folder / WEIGHTS)
    rewrite(folder, {f"module.{name}": tensor for name, tensor in weights.items()}, transformers_version="5.0.0")
    assert load_checkpoint(str(folder)).config == load_checkpoint(str(FAMILIES / "flan-t5")).config


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
            "a LoRA that is not merged, such as",
        ),
        ("model.layers.0.self_attn.q_proj.base_layer.weight", "a LoRA that is not merged, such as"),
        ("model.layers.0.self_attn.q_proj.qweight", "weights that another tool has quantised, such as"),
        ("model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4", "that another tool has quantised"),
    ],
)
def test_weights_that_must_be_merged_or_restored_are_named(name: str, message: str, copied: Path) -> None:
    rewrite(copied, {**load_file(copied / WEIGHTS), name: torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(str(copied))


def test_a_quantised_folder_is_named_by_its_method(copied: Path) -> None:
    rewrite(copied, load_file(copied / WEIGHTS), quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"quantised by another tool \(quantization_config 'fp8'\): export the model"):
        load_checkpoint(str(copied))


def test_a_class_without_its_head_is_named(copied: Path) -> None:
    weights = {name: tensor for name, tensor in load_file(copied / WEIGHTS).items() if name != "lm_head.weight"}
    rewrite(copied, weights, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"has no head \(projection\.weight\), as a class without one was saved"):
        load_checkpoint(str(copied))
    (problem,) = fit(str(copied)).problems
    assert problem.startswith("it has no head (projection.weight), as a class without one was saved")


@pytest.mark.parametrize("file", [WEIGHTS, PICKLE])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty; download or save it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS; `git lfs pull` downloads the file"),
        (b"# Llama\n\nThe card of a model.\n", "text, and no weights"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"\n<!DOCTYPE html><html>", "a page of HTML or XML"),
        (b'{"error": "not found"}', "JSON, such as the error message of a server"),
        (b"GGUF\x03\0\0\0", "GGUF, which is not read"),
        (b"\x1f\x8b\x08\0", "compressed with gzip; unpack it"),
        (b"weights/".ljust(257, b"\0") + b"ustar\x0000", "a tar archive; unpack it"),
    ],
)
def test_a_file_that_has_no_weights_is_told_by_what_it_is(content: bytes, kind: str, file: str, copied: Path) -> None:
    (copied / WEIGHTS).unlink()
    (copied / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=kind):
        load_checkpoint(str(copied))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_pickle_by_the_name_of_safetensors_is_told(is_new: bool, copied: Path) -> None:
    weights = load_file(copied / WEIGHTS)
    (copied / WEIGHTS).unlink()  # it is mapped
    torch.save(weights, copied / WEIGHTS, _use_new_zipfile_serialization=is_new)
    with pytest.raises(CheckpointError, match=r"if torch\.save wrote it, name it pytorch_model\.bin"):
        load_checkpoint(str(copied))
