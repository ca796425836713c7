"""Folders that transformers and sentence-transformers write, and weights in several files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command, read_values
from tests.hostile.corpus.values import DEEP_LIST, NAME, spell
from txport.models.names import CONFIG, INDEX, MODULES

EITHER = (GOOD, BAD)
POOLING = f"1_Pooling/{CONFIG}"


def cases() -> Iterator[Case]:
    """Every folder."""
    yield from (Case(f"folders/modules {name}", _modules(modules)) for name, modules in MODULE_LISTS.items())
    yield from (Case(f"folders/index {name}", _index(change)) for name, change in INDEXES.items())
    yield from (Case(f"folders/{name}", _node(*what)) for name, what in NODES.items())


def imported(folder: Path, place: Place, codes: tuple[int, ...] = (BAD,)) -> list[Command]:
    """The table of a model, and the model as one of ours."""
    return [command("import", folder, codes=codes), command("import", folder, place.out / "made", codes=codes)]


def _module(kind: str, path: object) -> dict[str, object]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


MODULE_LISTS: dict[str, Any] = {
    "of nothing": [],
    "of numbers": [1, 2],
    "as an object": {"0": _module("Transformer", "")},
    "of a path that leads out": [_module("Transformer", ""), _module("Pooling", "../../outside/1_Pooling")],
    "of an absolute path": [_module("Transformer", ""), _module("Pooling", "/etc/1_Pooling")],
    "of a model elsewhere": [_module("Transformer", "../outside"), _module("Pooling", "1_Pooling")],
    "of a path above": [_module("Transformer", ""), _module("Pooling", "..")],
    "of a path of nothing": [_module("Transformer", ""), _module("Pooling", None)],
    "of a path of escapes": [_module("Transformer", ""), _module("Pooling", f"{NAME}_Pooling")],
    "of a path with a NUL": [_module("Transformer", ""), _module("Pooling", "a\0_Pooling")],
    "of a path that is missing": [_module("Transformer", ""), _module("Pooling", "9_Pooling")],
    "of code": [_module("Transformer", ""), {"path": "1_Pooling", "type": "custom.Pooling"}],
    "of kinds of escapes": [_module("Transformer", ""), _module(NAME, "1_Pooling")],
    "the other way": [_module("Pooling", "1_Pooling"), _module("Transformer", "")],
    "of Normalize alone": [_module("Normalize", "2_Normalize")],
    "of a dense layer": [_module("Transformer", ""), _module("Pooling", "1_Pooling"), _module("Dense", "2_Dense")],
}


def _modules(modules: Any) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("sentences-mean")
        (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")
        # What is wrong with pooling is told where a model is made, not where its tensors are shown.
        return [command("import", folder, place.out / "made", codes=(BAD,)),
                command("export", folder, place.out / "made", codes=(BAD,))]  # fmt: skip

    return make


def _index(change: Callable[[Any], Any]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("shards")
        values = change(read_values(folder / INDEX))
        (folder / INDEX).write_text(spell(json.dumps(values)), encoding="utf-8", errors="surrogatepass")
        return imported(folder, place)

    return make


def _all(file: Any) -> Callable[[Any], Any]:
    """All tensors in one file, whatever that is."""
    return lambda values: {**values, "weight_map": dict.fromkeys(values["weight_map"], file)}


def _more(file: Any) -> Callable[[Any], Any]:
    return lambda values: {**values, "weight_map": {**values["weight_map"], "more": file}}


INDEXES: dict[str, Callable[[Any], Any]] = {
    "of nothing": lambda values: {},
    "of no files": lambda values: {"weight_map": {}},
    "of a list": lambda values: {"weight_map": ["model.safetensors"]},
    "of numbers": _all(5),
    "of lists": _all(["a"]),
    "of null": _more(None),
    "of 200,000 levels": lambda values: {"weight_map": DEEP_LIST},
    "of a file that leads out": _more("../../outside/precious.bin"),
    "of an absolute file": _more("/etc/passwd"),
    "of a file with backslashes": _more("..\\..\\outside\\precious.bin"),
    "of a folder": _more("."),
    "of the folder above": _more(".."),
    "of a file of escapes": _more(NAME),
    "of a file with a NUL": _more("a\0b"),
    "of a lone surrogate": _more("\ud800"),
    "of a name of 5,000 characters": _more("a" * 5_000),
    "of a config as weights": _more(CONFIG),
    "of 100,000 files": lambda values: {"weight_map": {str(at): f"{at}.safetensors" for at in range(100_000)}},
    "of one file alone": _all("model-00001-of-00002.safetensors"),
}


def _away(path: Path, to: object) -> None:
    path.unlink()
    path.symlink_to(str(to))


SHARD = "model-00001-of-00002.safetensors"
NODES: dict[str, tuple[str, Callable[[Path, Place], object], tuple[int, ...]]] = {
    "a shard by a link to nothing": ("shards", lambda folder, place: _away(folder / SHARD, "nowhere"), (BAD,)),
    "a shard by a link to itself": ("shards", lambda folder, place: _away(folder / SHARD, SHARD), (BAD,)),
    "a shard of an endless device": ("shards", lambda folder, place: _away(folder / SHARD, "/dev/zero"), (BAD,)),
    "a shard of another file": (
        "shards",
        lambda folder, place: _away(folder / SHARD, place.outside / "precious.bin"),
        (BAD,),
    ),
    "a shard twice": (
        "shards",
        lambda folder, place: _away(folder / SHARD, "model-00002-of-00002.safetensors"),
        (BAD,),
    ),
    "a FIFO of modules": (
        "sentences-mean",
        lambda folder, place: ((folder / MODULES).unlink(), os.mkfifo(folder / MODULES)),
        EITHER,
    ),
    "a link of modules to itself": ("sentences-mean", lambda folder, place: _away(folder / MODULES, MODULES), EITHER),
    "a pooling of an endless device": (
        "sentences-mean",
        lambda folder, place: _away(folder / POOLING, "/dev/zero"),
        EITHER,
    ),
    "a FIFO of settings": ("tokenizer-bert", lambda folder, place: _fifo(folder / "tokenizer_config.json"), EITHER),
    "a FIFO of pieces": ("tokenizer-t5-bytes", lambda folder, place: _fifo(folder / "spiece.model"), EITHER),
    "an endless vocabulary": ("tokenizer-bert", lambda folder, place: _away(folder / "vocab.txt", "/dev/zero"), EITHER),
    "endless merges": ("tokenizer-gpt2", lambda folder, place: _away(folder / "merges.txt", "/dev/zero"), (BAD,)),
    "an endless binary": ("ctranslate2-own", lambda folder, place: _away(folder / "model.bin", "/dev/zero"), (BAD,)),
    "an endless archive": ("marian", lambda folder, place: _away(folder / "model.npz", "/dev/zero"), (BAD,)),
    "an endless pickle": ("opennmt", lambda folder, place: _away(folder / "model_step_10.pt", "/dev/zero"), (BAD,)),
    "a FIFO of a binary": ("ctranslate2-own", lambda folder, place: _fifo(folder / "model.bin"), (BAD,)),
    "a FIFO of an archive": ("marian", lambda folder, place: _fifo(folder / "model.npz"), (BAD,)),
    "an archive that is a folder": (
        "marian",
        lambda folder, place: ((folder / "model.npz").unlink(), (folder / "model.npz").mkdir()),
        (BAD,),
    ),
    "endless options": ("marian", lambda folder, place: (folder / "a.decoder.yml").symlink_to("/dev/zero"), (BAD,)),
}


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _node(
    base: str, change: Callable[[Path, Place], object], codes: tuple[int, ...]
) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base(base)
        change(folder, place)
        return imported(folder, place, codes)[base.startswith("tokenizer") :]  # of which a table says nothing

    return make
