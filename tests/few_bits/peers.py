"""What other engines of few bits give for the same ids, each in its environment of `benchmarks.peers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.peers.engines import Ids, Model, Search
from benchmarks.peers.environments import DECODERS, ENCODERS, ENGINES, Peer, environment_of
from benchmarks.peers.process import Worker
from txport.models.facts import Facts

TOKENS = 48  # of an answer
BATCH = 32  # sentences; a question is alone
CTRANSLATE2 = "CTranslate2 int8"
OF_DECODERS = {**DECODERS, CTRANSLATE2: Peer(ENGINES + "ct2", "int8")}
OF_PAIRED = {CTRANSLATE2: OF_DECODERS[CTRANSLATE2]}  # models with an encoder and a decoder
OF_ENCODERS = {**ENCODERS, CTRANSLATE2: Peer(ENGINES + "ct2_encoder", "int8")}


def run_all(
    folder: Path, precision: str | None, ids: Ids | str, facts: Facts, scratch: Path, pythons: Mapping[str, Path]
) -> Iterator[tuple[str, Path, list[list[Any]]]]:
    """Yield each peer's name, its folder and its outputs; say which one is passed over for want of an environment.

    `ids` may be the path of a file of features.
    """
    known = OF_PAIRED if facts.is_encoder_decoder else OF_DECODERS if facts.generates else OF_ENCODERS
    tokens = TOKENS if facts.generates else 0
    for name, peer in known.items():
        python = pythons[environment_of(peer.engine)]
        if not peer.precision.startswith(precision or ("int8", "int4")):
            continue
        if not python.exists():
            click.echo(f"{name} is passed over: there is no {python}; `make peers` makes it", err=True)
            continue
        place = scratch / name.replace(" ", "-")
        with Worker(python.absolute(), {}, scratch / "log") as worker:
            yield name, place, run(worker, peer, folder, ids, tokens, place)


def run(worker: Worker, peer: Peer, checkpoint: Path, ids: Ids | str, tokens: int, place: Path) -> list[list[Any]]:
    """Convert a checkpoint and return the greedy tokens after each prompt; for 0 tokens, the vector of each row."""
    model = Model(checkpoint=str(checkpoint.absolute()), precision=peer.precision)
    worker.request("prepare", engine=peer.engine, folder=str(place), model=asdict(model))
    worker.request(
        "load",
        engine=peer.engine,
        folder=str(place),
        search=asdict(Search(max_new_tokens=tokens, forced=False)),
        options={"threads": 1, "workers": 1, "batch_size": 0},
        sources=ids if isinstance(ids, str) else [list(row) for row in ids],
        batch=1 if tokens else BATCH,
    )
    worker.request("round")
    outputs: list[list[Any]] = worker.request("tokens")["tokens"]
    return outputs
