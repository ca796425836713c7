"""Damaged folders of every family are refused, with an error that names the tensor, the key or the file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints.families.test_families import EACH_TYPE
from tests.recorded import FAMILIES
from txport.checkpoints import checkpoint
from txport.checkpoints.sources.source import read_source
from txport.checkpoints.weights.plan import plan
from txport.errors import CheckpointError, ConfigError
from txport.models import architecture
from txport.models.config import Config
from txport.models.model import Model
from txport.models.names import CONFIG, INDEX, WEIGHTS
from txport.models.rules import Constant, Take

SIZES = (  # keys of configs that shapes of tensors follow from
    *("vocab_size", "hidden_size", "n_embd", "d_model", "dim", "intermediate_size", "d_ff", "hidden_dim", "ffn_dim"),
    *("encoder_ffn_dim", "encoder_layers", "decoder_layers", "num_layers", "n_layers", "n_layer"),
)
EMBEDDINGS = ("shared", "embed_tokens", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head", "proj_out")


@dataclass
class Folder:
    """A folder while it is damaged. `counting` are the tensors all of whose numbers the model has."""

    path: Path
    weights: dict[str, Tensor]
    counting: list[str]
    also: dict[str, set[str]]  # the model's names for each of them
    tied: dict[str, tuple[int, ...]]  # names and shapes of tensors that the model has but once
    rng: np.random.Generator

    def draw(self, of: Callable[[Tensor], bool] = lambda each: True) -> str:
        """A tensor that counts."""
        return str(self.rng.choice([name for name in self.counting if of(self.weights[name])]))

    def names(self, *given: str) -> set[str]:
        """What an error may call tensors."""
        return {*given, *(each for name in given for each in self.also.get(name, ()))}


@cache
def built(config: Config) -> Model:
    """Each model once."""
    return architecture.of(config).build(config)


def read(name: str) -> Folder:
    source = read_source(FAMILIES / name)
    weights = load_file(FAMILIES / name / WEIGHTS)
    shapes = {each: tuple(tensor.shape) for each, tensor in weights.items()}
    model = built(source.config)
    names: dict[int, set[str]] = {}
    for own, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(own)
    also: dict[str, set[str]] = {}
    partly: set[str] = set()
    for own, pieces in plan(source.rules, shapes, model).made.items():
        for each, piece in ((each, found) for found in pieces for each in found.value.names()):
            also.setdefault(each, set()).update(names[id(model.get_parameter(own))])
            if any(isinstance(source.rules[at], Take) for at in piece.rules):
                partly.add(each)
    optional = [rule.pattern for rule in source.rules if isinstance(rule, Constant)]
    partly |= {each for each, own in also.items() for one in own if any(re.match(rule, one) for rule in optional)}
    counting = [each for each in weights if each in also and each not in partly]
    tied = {}
    for other in (f"{prefix}{each}.weight" for prefix in ("", "model.") for each in EMBEDDINGS):
        more = plan(source.rules, {**shapes, other: (1, 1)}, model) if other not in weights else None
        for own, pieces in more.made.items() if more is not None else ():
            if len(pieces) > 1 and any(other in piece.value.names() for piece in pieces):
                tied[other] = more.expected[own]
    return Folder(FAMILIES / name, weights, counting, also, tied, np.random.default_rng(0))


def write(folder: Folder) -> None:
    save_file({name: each.contiguous() for name, each in folder.weights.items()}, folder.path / WEIGHTS)


def removed(folder: Folder) -> set[str]:
    name = folder.draw()
    del folder.weights[name]
    return folder.names(name)


def renamed(folder: Folder) -> set[str]:
    name = folder.draw()
    folder.weights[other := f"other.{name}.weight"] = folder.weights.pop(name)
    return folder.names(name, other)


def extra(folder: Folder) -> set[str]:
    other = f"extra.{folder.draw()}"
    folder.weights[other] = torch.ones(3)
    return {other}


def transposed(folder: Folder) -> set[str]:
    name = folder.draw(lambda each: each.dim() == 2 and each.shape[0] != each.shape[1])
    folder.weights[name] = folder.weights[name].t()
    return folder.names(name)


def cut(folder: Folder) -> set[str]:
    name = folder.draw()
    whole = folder.weights[name]
    dim = int(folder.rng.integers(whole.dim()))
    folder.weights[name] = whole.narrow(dim, 0, whole.shape[dim] - 1)
    return folder.names(name)


def of_integers(folder: Folder) -> set[str]:
    name = folder.draw()
    folder.weights[name] = folder.weights[name].int()
    return folder.names(name)


def not_a_number(folder: Folder) -> set[str]:
    name = folder.draw()
    changed = folder.weights[name].clone()
    changed.view(-1)[int(folder.rng.integers(changed.numel()))] = float(folder.rng.choice([np.nan, np.inf]))
    folder.weights[name] = changed
    return folder.names(name)


def exchanged(folder: Folder) -> set[str]:
    one = folder.draw()
    other = folder.draw(lambda each: each.shape != folder.weights[one].shape)
    weights = folder.weights
    weights[one], weights[other] = weights[other], weights[one]
    return folder.names(one, other)


def untied(folder: Folder) -> set[str]:
    if not folder.tied:
        return removed(folder)
    name = str(folder.rng.choice(list(folder.tied)))
    folder.weights[name] = torch.full(folder.tied[name], 0.5)
    return {name}


def without_a_shard(folder: Folder) -> set[str]:
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files[number % 2] for number, name in enumerate(folder.weights)}
    (folder.path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    gone = str(folder.rng.choice(files))
    for file in files:
        part = {name: each for name, each in folder.weights.items() if places[name] == file}
        if file != gone:
            save_file(part, folder.path / file)
    (folder.path / WEIGHTS).unlink()
    return {gone}


def truncated(folder: Folder) -> set[str]:
    write(folder)
    path = folder.path / WEIGHTS
    path.write_bytes(path.read_bytes()[: int(folder.rng.integers(1, path.stat().st_size))])
    return {WEIGHTS}


def of_another_size(folder: Folder) -> set[str]:
    config = json.loads((folder.path / CONFIG).read_text())
    values = config.get("text_config", config)
    key = str(folder.rng.choice([key for key in SIZES if isinstance(values.get(key), int)]))
    values[key] += int(folder.rng.choice([-1, 1, values[key]]))
    (folder.path / CONFIG).write_text(json.dumps(config))
    write(folder)
    return {key, *(each for names in folder.also.values() for each in names), *folder.counting, "d_model", "heads"}


TENSORS = (removed, renamed, extra, transposed, cut, of_integers, not_a_number, exchanged, untied)
FILES = (without_a_shard, truncated, of_another_size)
PARTS = 3  # of the damages: a type takes one, so that ten types take each


@pytest.mark.parametrize("name", EACH_TYPE)
def test_a_damaged_folder_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[Any] = []
    whole = read(name)
    part = EACH_TYPE.index(name) % PARTS
    monkeypatch.setattr(checkpoint, "build_empty", built)
    monkeypatch.setattr(checkpoint, "architecture", SimpleNamespace(of=lambda _: SimpleNamespace(build=built)))
    for seed, damage in list(enumerate((*TENSORS, *FILES)))[part::PARTS]:
        path = Path(shutil.copytree(FAMILIES / name, tmp_path / str(seed)))
        folder = replace(whole, path=path, weights=dict(whole.weights), rng=np.random.default_rng(seed))
        names = damage(folder)
        if damage in TENSORS:
            write(folder)
        try:
            checkpoint.load_checkpoint(str(path))
        except (CheckpointError, ConfigError) as error:
            if "\n" in str(error) or not any(each in str(error) for each in names):
                accepted.append((damage.__name__, seed, str(error), sorted(names)[:3]))
        else:
            accepted.append((damage.__name__, seed, sorted(names)[:3]))
        shutil.rmtree(path)
    assert accepted == []
