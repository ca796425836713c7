"""The folder of a checkpoint by its name, the files that the checkpoint is made of, and their hash."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from txport import models
from txport.checkpoints import hub
from txport.errors import CheckpointError, UnsupportedError, quoted
from txport.models.config import Config
from txport.models.names import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    GGUF,
    INDEX,
    MAKING,
    MANIFEST,
    MARKS,
    PICKLE,
    PICKLE_INDEX,
    PICKLES,
    PUBLISHED,
    RULES,
    TRAINERS,
    WEIGHTS,
    WITH,
)
from txport.system.documents import DocumentError, read_json, read_toml
from txport.system.files import complete, hash_of, sha256
from txport.system.packages import needed
from txport.system.paths import require_possible, require_utf8
from txport.system.terminal import one_line

PRESET = "preset:"
CODE = re.compile(r"(.+\.py):([^\W\d]\w*)")  # a file of the user's, and the variable of the adapter in it
SHIPPED = Path(models.__file__).parent
AND = " + "  # between a checkpoint and each LoRA: "base + lora=0.5"


class Lora(NamedTuple):
    """A LoRA of PEFT: its folder or its name on the hub, and the factor of its changes."""

    name: str
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Lora:
        """Read `FOLDER` or `FOLDER=WEIGHT`."""
        name, _, weight = text.rpartition("=")
        with contextlib.suppress(ValueError):
            if name and math.isfinite(float(weight)) and not Path(text).exists():
                return cls(name, float(weight))
        return cls(text)

    @property
    def folder(self) -> Path:
        """Its folder, downloaded if need be; raise `CheckpointError` if there is none, or it is not of PEFT."""
        found = hub.download(self.name, (ADAPTER, ADAPTER_WEIGHTS[0])) if is_of_hub(self.name) else Path(self.name)
        if not (found / ADAPTER).is_file():
            raise CheckpointError(f"{found} is not a LoRA of PEFT: {ADAPTER} is missing")
        return found

    @property
    def files(self) -> list[Path]:
        """Its files: the config and the weights. Raises `CheckpointError` for missing ones."""
        folder = self.folder
        weights = [folder / name for name in ADAPTER_WEIGHTS if (folder / name).is_file()]
        if not weights:
            raise CheckpointError(f"{folder / ADAPTER_WEIGHTS[0]} is missing")
        return [folder / ADAPTER, weights[0]]

    def __str__(self) -> str:
        return self.name if self.weight == 1 else f"{self.name}={self.weight!r}"


def with_loras(name: str, loras: Sequence[str]) -> str:
    """Return the name of a checkpoint with LoRAs, each `FOLDER` or `FOLDER=WEIGHT`; see docs/lora.md."""
    if loras and preset_name(name):
        raise UnsupportedError(f"a LoRA is for a folder with weights; {name} has random ones")
    return AND.join([name, *loras])


def split_loras(name: str) -> tuple[str, tuple[Lora, ...]]:
    """Return the name of a checkpoint without its LoRAs, and these; see `with_loras`."""
    if AND not in name or Path(name).exists():
        return name, ()
    base, *loras = name.split(AND)
    return base, tuple(map(Lora.parse, loras))


def shipped() -> list[str]:
    """Return the names of the checkpoints that ship with txport."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_shipped(name: str) -> bool:
    """Return True if `name` is a shipped checkpoint and no local checkpoint folder has this name."""
    return name in shipped() and not any((Path(name) / file).is_file() for file in (WEIGHTS, INDEX))


def is_of_hub(name: str) -> bool:
    """Return True if `name` is a name on Hugging Face's hub and there is no local folder of this name."""
    return hub.is_hub_name(name) and not Path(name).is_dir()


def preset_name(name: str) -> str | None:
    """Return `base` for `preset:base`; None for any other name."""
    return name.removeprefix(PRESET) if name.startswith(PRESET) else None


def code_name(name: str) -> tuple[Path, str] | None:
    """Return the file and the variable of `model.py:NAME`; None for any other name."""
    found = CODE.fullmatch(name)
    return None if found is None else (Path(found[1]), found[2])


def presets() -> Mapping[str, Config]:
    """Return the presets of all architectures; raise `UnavailableError` if PyTorch is not installed."""
    with needed("txport[export]", "a preset"):
        from txport.models import architecture
    return architecture.presets()


def preset_config(preset: str) -> Config:
    """Return the config of a preset; raise `CheckpointError` if there is none of this name."""
    known = presets()
    if preset not in known:
        raise CheckpointError(f"unknown preset {preset!r}; there are {', '.join(known)}")
    return known[preset]


def find_folder(name: str) -> Path:
    """Return the folder of a checkpoint, without LoRAs, by path, shipped name, or name on the hub (downloaded).

    Raises `CheckpointError` if there is no checkpoint or the name is no path, `UnsupportedError` for a file of code.
    """
    require_possible(name, CheckpointError)
    name, _ = split_loras(name)
    if code_name(name):
        raise UnsupportedError(f"{name} is code, which runs only if you trust it: give trust_code=True")
    folder = SHIPPED / name if is_shipped(name) else Path(name)
    if is_of_hub(name):
        folder = hub.download(name, PUBLISHED)
    if not folder.is_dir():
        _require_no_file(folder)
        known = ", ".join([*shipped(), f"{PRESET}NAME"])
        raise CheckpointError(f"there is no checkpoint {name}; give a folder with {CONFIG}, or one of {known}")
    try:
        complete(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} was being saved, which can't be completed: {error.strerror}") from error
    if (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} is a bundle, not a checkpoint; name the checkpoint that it was made from")
    require_utf8(folder, CheckpointError)
    _require_whole(folder)
    if not any(path.is_file() for mark in MARKS for path in folder.glob(mark)):
        if graphs := graphs_alone(folder):
            raise CheckpointError(f"{folder} {graphs}")
        raise CheckpointError(f"{folder} is not a checkpoint: {CONFIG} is missing{draft_advice(folder)}")
    return folder


def _require_no_file(path: Path) -> None:
    """Raise an error for a path that is a file, with advice on what to name instead."""
    if path.suffix == ".py":
        raise UnsupportedError(f"{path} is a file of code; give {path}:NAME, the adapter in it")
    if path.is_file() and path.suffix == GGUF:
        raise CheckpointError(f"{path}: GGUF is not read; take the folder that it was made from")
    if path.is_file():
        raise CheckpointError(f"{path} is a file; give its folder, {path.parent}")


def _require_whole(folder: Path) -> None:
    """Raise `CheckpointError` for an adapter of PEFT and for GGUF, unless other weights are in the folder."""
    names = [path.name for path in folder.glob("*")]
    if {RULES, WEIGHTS, INDEX, PICKLE, PICKLE_INDEX} & set(names) or any(any(folder.glob(mark)) for mark in TRAINERS):
        return
    if ADAPTER in names:
        raise CheckpointError(f"{folder} is {_peft(folder / ADAPTER)}")
    files = sorted(name for name in names if name.endswith(GGUF))
    if files and not any(name.endswith(PICKLES) for name in names):
        what = f"{folder} has weights as GGUF, {quoted(files[0])}"
        raise CheckpointError(f"{what}, which is not read; take the folder that it was made from")


def _peft(path: Path) -> str:
    """Return a description of an adapter of PEFT, with advice on how to export it."""
    try:
        values = read_json(path)
    except DocumentError:
        values = {}
    base = values.get("base_model_name_or_path")
    of = quoted(base) if isinstance(base, str) and base else "another model"
    if values.get("peft_type") == "LORA":
        return f"a LoRA of {of}; `txport export MODEL OUT --lora {path.parent}` merges it with that model"
    fix = "merge it into that (merge_and_unload), and save the whole model (save_pretrained)"
    return f"an adapter of PEFT of {of}; {fix}"


def graphs_alone(folder: Path) -> str:
    """Return what a folder is that has ONNX graphs without a config, and what to do; empty for another folder."""
    names = sorted(path.name for path in folder.glob("*.onnx") if path.is_file())
    if not names or (folder / CONFIG).exists() or (folder / MANIFEST).exists():
        return ""
    shown = ", ".join(map(one_line, names[:3])) + (", ..." if len(names) > 3 else "")
    fix = f"export the checkpoint that they were made from, or run graphs of Optimum's with their {CONFIG}"
    return f"has ONNX graphs ({shown}) and no {CONFIG}, which says what model they are of: {fix}"


def draft_advice(folder: Path) -> str:
    """Return advice for a folder that has weights without a config; empty if it has no weights."""
    try:
        weight_files(folder)
    except CheckpointError:
        return ""
    return f"; `txport import {folder} --draft-map {folder / RULES}` drafts a description of its weights"


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights of a checkpoint: one file, or the shards of an index.

    Files named in `txport.toml` come first, then safetensors, then the pickles of transformers, then the only pickle of
    the folder. Raises `CheckpointError` if a file is missing.
    """
    if (folder / RULES).is_file() and (named := _named(folder)):
        return named
    for file, index in ((WEIGHTS, INDEX), (PICKLE, PICKLE_INDEX)):
        if (folder / file).is_file():
            return [folder / file]
        if (folder / index).is_file():
            return _shards(folder, index)
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES and file.is_file())
    if len(pickles) == 1:
        return pickles
    names = ", ".join(file.name for file in pickles)
    hint = f'; of {names}, name one in {RULES}: weights = "{pickles[0].name}"' if pickles else ""
    raise CheckpointError(f"{folder / WEIGHTS} is missing{hint}")


def _named(folder: Path) -> list[Path]:
    """Return the files that `txport.toml` names as weights; empty if it names none."""
    try:
        values = read_toml(folder / RULES).get("weights", [])
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
    names = [values] if isinstance(values, str) else values
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise CheckpointError(f"{folder / RULES} must name weights as files beside it, got {quoted(values)}")
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing, which {RULES} names as weights")
    return [folder / name for name in names]


def _shards(folder: Path, index: str) -> list[Path]:
    """Return the files of an index; raise `CheckpointError` if one is missing."""
    try:
        places = read_json(folder / index)["weight_map"]
        names = sorted(set(places.values()))
    except (DocumentError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / index} does not say in which files the weights are") from error
    strange = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if strange or not names:
        raise CheckpointError(f"{folder / index} must name files beside it, got {quoted(strange[:1])}")
    there = {path.name for path in folder.iterdir() if path.is_file()}
    if missing := [name for name in names if name not in there]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder} lacks {quoted(missing[0])}{more}, which {index} names; download it again")
    return [folder / name for name in names]


def digest(name: str) -> str:
    """Return a SHA-256 over all files that belong to a checkpoint, or over the config of a preset."""
    if preset := preset_name(name):
        return hash_of({"preset": preset, "config": repr(preset_config(preset))})
    base, loras = split_loras(name)
    folder = find_folder(base)
    hashes = {path.relative_to(folder).as_posix(): sha256(path) for path in files_of(folder)}
    for number, lora in enumerate(loras):
        hashes |= {f"lora {number}/{path.name}": sha256(path) for path in lora.files}
        hashes[f"lora {number}"] = repr(lora.weight)
    return hash_of(hashes)


def files_of(folder: Path) -> list[Path]:
    """Return the files that belong to a checkpoint, its weights included."""
    marks = [*MAKING, *(more for mark, others in WITH.items() if any(folder.glob(mark)) for more in others)]
    found = [path for mark in marks for path in sorted(folder.glob(mark)) if path.is_file()]
    try:
        weights = weight_files(folder)
    except CheckpointError:  # reported when the weights are read
        weights = []
    return list(dict.fromkeys([*found, *weights]))


def label(name: str) -> str:
    """Return the name of a checkpoint as a bundle stores it: never a path of this machine.

    Raises `CheckpointError` if the name is no path.
    """
    require_possible(name, CheckpointError)
    if code := code_name(name):
        return f"{code[0].name}:{code[1]}"
    base, loras = split_loras(name)
    if loras:
        return AND.join([label(base), *(str(each._replace(name=label(each.name))) for each in loras)])
    return name if preset_name(name) or is_shipped(name) or is_of_hub(name) else Path(name).resolve().name
