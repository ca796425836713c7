"""What the graphs of one folder say, beside what transformers said of its model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import txport
from tests.agreement.asked import FILL, INPUTS, SEARCHES, SECONDS
from tests.audio.noise import drawn_noise
from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import load_checkpoint

NEAR = 1e-5  # of the largest output of an encoder: fp32 rounds otherwise in other kernels
OURS = {"num_beams": "beams"}  # by the names of transformers

Said = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Difference:
    """An input of which a search says `ours`, and not what transformers says; or outputs that are too far off."""

    search: str
    number: int
    ours: tuple[int, ...]
    text: str


def compare(folder: Path, target: str) -> list[Difference]:
    """Export a folder, and compare what its graphs say with what was recorded of its model."""
    with np.load(f"{folder}.npz") as stored, TemporaryDirectory() as place:
        said: Said = dict(stored)
        bundle = bundle_of(load_checkpoint(str(folder)), Path(place) / "bundle", target)
        model = txport.load(bundle.path, threads=1)
        return [*(_of_outputs if "outputs.0" in said else _of_searches)(model, said)]


def _of_outputs(model: txport.Model, said: Said) -> Iterator[Difference]:
    for number, row in enumerate(said["inputs"]):
        ids = row[row != FILL][None]
        found = [np.squeeze(each) for each in model.runtime.infer(ids, np.array([ids.shape[1]])).values()]
        if model.facts.ability == "answer":
            found = [np.squeeze(np.stack(found))]
        wanted = np.squeeze(said[f"outputs.{number}"])
        ours = next(each for each in found if each.shape == wanted.shape)
        off = float(np.abs(ours - wanted).max() / np.abs(wanted).max())
        if not off <= NEAR:
            yield Difference("outputs", number, (), f"{off:.1g} of the largest off")


def _of_searches(model: txport.Model, said: Said) -> Iterator[Difference]:
    ends = model.facts.writes.ends
    for search in SEARCHES:
        for number, (ours, row) in enumerate(zip(_found(model, said, search), said[search], strict=True)):
            wanted = answer(row.tolist(), ends if "inputs" in said else ())
            if ours != wanted:
                yield Difference(search, number, ours, f"{[*ours]} for {[*wanted]}")


def _found(model: txport.Model, said: Said, search: str) -> list[tuple[int, ...]]:
    options = {OURS.get(key, key): value for key, value in SEARCHES[search].items()}
    if "inputs" not in said:
        heard = [drawn_noise(SECONDS[number % len(SECONDS)], number) for number in range(INPUTS)]
        texts = model.transcribe(heard, beams=options["beams"])
        return [tuple(token for part in text.segments for token in part.tokens) for text in texts]
    inputs = said["inputs"]
    sources = [row[row != FILL].tolist() for row in inputs] if inputs.dtype.kind == "i" else list(inputs)
    return [found[0].tokens for found in model.search(sources, **options)]


def answer(row: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """The tokens of a row up to the first end token, without what fills it up."""
    tokens = [token for token in row if token != FILL]
    return tuple(tokens[: next((at + 1 for at, token in enumerate(tokens) if token in ends), len(tokens))])
