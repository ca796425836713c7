"""Weights in pickles: tensors are read with a warning, for every format; whatever else a file holds is refused."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES
from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.checkpoints.folder import digest
from txport.checkpoints.sources import source
from txport.checkpoints.sources.pickles import read_pickle
from txport.checkpoints.sources.source import read_weights
from txport.errors import CheckpointError
from txport.models.names import CONFIG, PICKLE, PICKLE_INDEX, WEIGHTS

READ = {"a.b": torch.arange(6.0).view(2, 3), "c": torch.ones(2, dtype=torch.float16)}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("values", "at"),
    [
        (READ, ""),
        ({"model": READ, "epoch": 3}, ""),
        ({"model": READ, "ema": READ, "lr": 0.1}, "model"),
        ({"all": {"state_dict": READ}}, "all.state_dict"),
        ({"all": {"state_dict": READ}}, "all"),
        ({"epoch": 3, **READ}, ""),
    ],
)
def test_tensors_are_read_wherever_they_lie(values: Any, at: str, is_new: bool, tmp_path: Path) -> None:
    torch.save(values, tmp_path / "m.pt", _use_new_zipfile_serialization=is_new)
    weights = read_pickle(tmp_path / "m.pt", at)
    assert weights.shapes == {"a.b": (2, 3), "c": (2,)}
    assert all(torch.equal(weights[name], tensor) for name, tensor in READ.items())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"args": argparse.Namespace(), **READ}, "is refused: it holds argparse.Namespace, which may run code; save"),
        (torch.nn.Linear(2, 2), "is refused: it holds torch.nn.modules.linear.Linear"),
        ({"model": READ, "ema": READ}, r"has tensors in 'model' and 'ema'; say which: at = 'model' in txport\.toml"),
        ({"a": torch.eye(3).to_sparse()}, "holds 'a', which is sparse"),
        ([torch.ones(1)], "holds no tensors by name"),
        ({}, "holds no tensors by name"),
    ],
)
def test_what_is_more_than_tensors_is_refused(values: Any, message: str, tmp_path: Path) -> None:
    torch.save(values, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=message):
        read_pickle(tmp_path / "m.pt")


@pytest.mark.parametrize("kept", [0, 10, 100, -30, -1])
@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_cut_off_is_refused_without_advice_to_run_it(kept: int, is_new: bool, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.save(READ, file, _use_new_zipfile_serialization=is_new)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="is refused: it is not a whole file of tensors") as caught:
        read_pickle(file)
    assert "weights_only" not in str(caught.value)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save(READ, tmp_path / "m.pt")
    with (
        zipfile.ZipFile(tmp_path / "m.pt") as stored,
        zipfile.ZipFile(tmp_path / "n.pt", "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for name in stored.namelist():
            out.writestr(name, stored.read(name))
    with pytest.raises(CheckpointError, match="is compressed"):
        read_pickle(tmp_path / "n.pt")


def test_a_checkpoint_of_ours_may_have_its_weights_in_the_only_pickle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mine"
    model = tiny_model(tiny_config())
    save_checkpoint(folder, model)
    (folder / WEIGHTS).unlink()
    torch.save({"model": model.state_dict(), "step": 7}, folder / "last.pt")
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(str(folder))
        load_checkpoint(str(folder))
    told = "last.pt is a pickle, of which only tensors are read; `txport import` writes safetensors"
    assert caplog.text.count(told) == 1
    assert all(torch.equal(loaded.model.state_dict()[name], each) for name, each in model.state_dict().items())
    before = digest(str(folder))
    torch.save({"model": {}}, folder / "last.pt")
    assert digest(str(folder)) != before
    torch.save(model.state_dict(), folder / "best.pt")
    with pytest.raises(CheckpointError, match=r"is missing; of best\.pt, last\.pt, name one in txport\.toml"):
        load_checkpoint(str(folder))


def test_a_tensor_of_many_files_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 70 billion parameters lies in 30 files."""
    tensors = {f"layer.{number}": torch.full((2,), float(number)) for number in range(30)}
    names = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in names.items():
        save_file({name: tensors[name]}, tmp_path / file)
    (tmp_path / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    weights = read_weights(tmp_path)
    opened: list[Any] = []
    monkeypatch.setattr(source, "safe_open", lambda *args, **how: opened.append(args) or safe_open(*args, **how))
    assert "layer.0" in weights
    assert "layer.30" not in weights
    assert opened == []
    for name, expected in tensors.items():
        assert torch.equal(weights[name], expected)
    assert len(opened) == len(tensors)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_folder_of_transformers_may_have_pickles_only(is_whole: bool, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "gpt2", tmp_path / "gpt2"))
    expected = load_checkpoint(str(folder)).model.state_dict()
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save({"lr": 1e-3}, folder / "training_args.bin")
    if is_whole:
        torch.save(weights, folder / PICKLE)
    else:
        places = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(weights)}
        for file in set(places.values()):
            torch.save({name: each for name, each in weights.items() if places[name] == file}, folder / file)
        (folder / PICKLE_INDEX).write_text(json.dumps({"weight_map": places}))
    assert json.loads((folder / CONFIG).read_text())["model_type"] == "gpt2"
    loaded = load_checkpoint(str(folder)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
