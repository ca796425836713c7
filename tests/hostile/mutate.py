"""Seeded mutations: sound files with one thing changed that nobody thought of, each named by its kind and a number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile import archives, strangers
from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, fix_hashes, read_values, readers
from tests.hostile.changes import DEPTH, mutate_bytes, mutate_values, write_document
from tests.hostile.corpus import checkpoints, graphs, reports
from tests.hostile.corpus.values import spell
from tests.hostile.graph_changes import EDITS
from tests.hostile.sound import KINDS as BUNDLES
from txport.models.names import CONFIG, GOLDEN, MANIFEST, TOKENIZER, WEIGHTS

FILES = ("onnx/encoder_model.onnx", "golden.npz", "tokenizer.json", "samples.txt", "onnx/decoder_model_merged.onnx")
VERIFIED = (GOOD, FAILED, BAD)
Make = Callable[[Place, random.Random], list[Command]]


def names(count: int) -> list[str]:
    """So many mutations, of each kind as many as its share."""
    order = [kind for kind, (_, share) in MUTATIONS.items() for _ in range(share)]
    random.Random(0).shuffle(order)
    return [f"mutated {order[number % len(order)]}/{number}" for number in range(count)]


def mutation(name: str, seed: int) -> Case:
    """A mutation by its name: the same in every run of a seed."""
    kind, _, number = name.removeprefix("mutated ").partition("/")
    make, _ = MUTATIONS[kind]
    return Case(name, lambda place: make(place, random.Random(f"{seed} {kind} {number}")))


# Each kind


def _manifest(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    write_document(bundle / MANIFEST, mutate_values(read_values(bundle / MANIFEST), rng))
    return _some(readers(bundle, place), rng)


def _manifest_bytes(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    file = bundle / MANIFEST
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    return _some(readers(bundle, place), rng)


def _some(commands: list[Command], rng: random.Random) -> list[Command]:
    """One that shows, one that runs, one that proves."""
    chosen = [rng.choice([each for each in commands if each.name in names]) for names in TURNS]
    return list(dict.fromkeys(chosen))


TURNS = (("inspect",), ("run", "score"), ("verify",))


def _altered(place: Place, rng: random.Random) -> list[Command]:
    """A file that is not what its hash says."""
    bundle = place.bundle()
    file = bundle / rng.choice(FILES)
    before = file.read_bytes()
    file.write_bytes(mutate_bytes(before, rng))
    if file.read_bytes() == before:
        return []
    return _some(readers(bundle, place, inspect=[BAD], run=[BAD], verify=[FAILED]), rng)


def _graph_bytes(place: Place, rng: random.Random) -> list[Command]:
    kind = rng.choice(list(BUNDLES))
    bundle = place.bundle(kind)
    file = bundle / rng.choice((graphs.ENCODER, graphs.DECODER))[kind]
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _graph(place: Place, rng: random.Random) -> list[Command]:
    kind = rng.choice(list(BUNDLES))
    bundle = place.bundle(kind)
    file = bundle / rng.choice((graphs.ENCODER, graphs.DECODER))[kind]
    graphs.edit_model(file, lambda model: rng.choice(EDITS)(model, rng))
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _golden_bytes(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle()
    (bundle / GOLDEN).write_bytes(mutate_bytes((bundle / GOLDEN).read_bytes(), rng))
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _golden_member(place: Place, rng: random.Random) -> list[Command]:
    """Bytes of an array file in a zip that is sound."""
    bundle = place.bundle()
    members = archives.read_members(bundle / GOLDEN)
    name = rng.choice(list(members))
    members[name] = mutate_bytes(members[name][: rng.choice((128, len(members[name])))], rng)
    archives.write_members(bundle / GOLDEN, members)
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _golden(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle(rng.choice(list(BUNDLES)))
    with np.load(bundle / GOLDEN) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    arrays[name] = rng.choice(ARRAYS)(arrays[name], rng)
    np.savez(bundle / GOLDEN, **arrays)
    fix_hashes(bundle)
    return [command("verify", bundle, "--threads", 1, codes=VERIFIED)]


def _place(array: np.ndarray[Any, Any], value: Any, rng: random.Random) -> np.ndarray[Any, Any]:
    changed = array.copy()
    with np.errstate(all="ignore"):
        changed.flat[rng.randrange(max(1, changed.size))] = value
    return changed


ARRAYS: tuple[Callable[[np.ndarray[Any, Any], random.Random], Any], ...] = (
    lambda array, rng: _place(array, rng.choice((-1, 0, 1, 10**6, -(2**31))), rng),
    lambda array, rng: _place(array.astype(float), rng.choice((np.nan, np.inf, -np.inf, 1e308, 0.5)), rng),
    lambda array, rng: array.astype(rng.choice(("i1", "u8", "f2", "f8", "c8", "bool", "U5", "S3"))),
    lambda array, rng: array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1)))),
    lambda array, rng: array.ravel()[: rng.randrange(array.size + 1)],
    lambda array, rng: np.concatenate([array.ravel()] * 2),
    lambda array, rng: np.zeros((0,) * rng.randrange(1, 4), array.dtype),
    lambda array, rng: array.ravel()[::-1].reshape(array.shape),
    lambda array, rng: array.ravel()[0] if array.size else array,
    lambda array, rng: array * rng.choice((-1, 2, 1_000)),
)


def _mutate_document(file: Path, rng: random.Random) -> None:
    if rng.random() < 0.8:
        write_document(file, mutate_values(read_values(file), rng))
    else:
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))


def _tokenizer(place: Place, rng: random.Random) -> list[Command]:
    bundle = place.bundle()
    _mutate_document(bundle / TOKENIZER, rng)
    fix_hashes(bundle)
    return _some(readers(bundle, place), rng)


def _config(place: Place, rng: random.Random) -> list[Command]:
    checkpoint = place.checkpoint()
    _mutate_document(checkpoint / CONFIG, rng)
    return [replace(each, codes=each.codes | {FAILED}) for each in _loaded(checkpoint, place)]  # too large


def _loaded(checkpoint: Path, place: Place) -> list[Command]:
    """It is loaded, and then refused if nothing else is wrong: the bundle is of another checkpoint."""
    load = ("run", place.sound.bundle("portable"), "bad", "--runtime", "torch", "--threads", 1, "--checkpoint")
    return [command(*load, checkpoint, codes=(GOOD, BAD))]


def _weights(place: Place, rng: random.Random) -> list[Command]:
    checkpoint = place.checkpoint()
    file = checkpoint / WEIGHTS
    whole = file.read_bytes()
    header, data = checkpoints.split_weights(whole)
    if rng.random() < 0.7:
        text = spell(json.dumps(mutate_values(header, rng)), DEPTH)
        file.write_bytes(checkpoints.join_weights(text, data))
    else:
        size = rng.choice((8, 5_000, len(whole)))
        file.write_bytes(mutate_bytes(whole[:size], rng) + whole[size:])
    return _loaded(checkpoint, place)


def _report(kind: str) -> Make:
    def make(place: Place, rng: random.Random) -> list[Command]:
        values = reports.sound(place, kind)
        if kind == "parity":
            values["cases"] = values["cases"][: rng.choice((1, 2))]
        return [reports.against(place, kind, mutate_values(values, rng))]

    return make


def _text(place: Place, rng: random.Random) -> list[Command]:
    whole = mutate_bytes(b"bad\nchief\ndi'ed\na\n" * rng.choice((1, 20)), rng)
    how = [("--json",), ("--unknown", "skip"), ("--unknown", "skip", "--json", "--beams", 2), ("--stream",), ()]
    run = ("run", place.sound.bundle(rng.choice(list(BUNDLES))), "--threads", 1, "--max-new-tokens", 3)
    return [command(*run, *rng.choice(how), stdin=whole, codes=(GOOD, BAD))]


# How it is made, and its share of a hundred
MUTATIONS: dict[str, tuple[Make, int]] = {
    "manifest": (_manifest, 14),
    "manifest bytes": (_manifest_bytes, 4),
    "altered file": (_altered, 3),
    "graph bytes": (_graph_bytes, 5),
    "graph": (_graph, 9),
    "golden bytes": (_golden_bytes, 2),
    "golden member": (_golden_member, 3),
    "golden": (_golden, 4),
    "tokenizer": (_tokenizer, 5),
    "config": (_config, 4),
    "weights": (_weights, 4),
    "parity report": (_report("parity"), 3),
    "bench report": (_report("bench"), 3),
    "text": (_text, 3),
    **strangers.MUTATIONS,
}
assert sum(share for _, share in MUTATIONS.values()) == 100
