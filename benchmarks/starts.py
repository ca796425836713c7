"""Seconds from the start of a process to its first token, beside peers: `python -m benchmarks.starts`.

Each round starts a process for each engine, in changing order: it imports the engine, loads the model and generates one
token. The files are in memory from the first round, which does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from benchmarks.peers.candidates import FOLDERS, OURS, OWN, Candidate
from benchmarks.peers.duel import Place
from benchmarks.peers.engines import Model
from benchmarks.peers.engines.hf_folder import FOLDER
from benchmarks.peers.environments import ENGINES, environment_of, pythons_of
from benchmarks.peers.lines import BASE, G2P, SMOLLM
from benchmarks.peers.process import ROOT
from txport.system.progress import logged

SOURCE = [5, 6, 7, 8, 9, 10, 11, 12]
CASES = {
    FOLDER + SMOLLM: ("genai", "llama_cpp", "openvino_llm"),
    BASE: ("ct2", "hf_optimum"),
    G2P: ("ct2",),  # Optimum has no such norm
}
OPTIONS = {"threads": 2, "workers": 1, "batch_size": 1, "io_binding": False}
PROGRAM = """
import importlib, sys
from pathlib import Path
from benchmarks.peers.engines import Search
engine = importlib.import_module(sys.argv[1]).Engine(Path(sys.argv[2]), Search(max_new_tokens=1), {options})
assert len(engine.decode(engine.generate(engine.encode([{source}])))) == 1
print("done", flush=True)
"""


def seconds(candidate: Candidate, place: Place) -> float:
    """Start a process, and return the seconds until it says that it has its first token.

    Raises `ClickException`, with the end of what it wrote, if it ends before.
    """
    own = candidate.engine in OWN
    python = Path(sys.executable) if own else place.pythons[environment_of(candidate.engine)]
    program = PROGRAM.format(options=OPTIONS, source=SOURCE)
    command = [str(python.absolute()), "-c", program, candidate.engine, str(place.prepare(candidate))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=told) as made:
            assert made.stdout is not None
            is_done = any(line == b"done\n" for line in made.stdout)
            taken = time.perf_counter() - begun
        told.seek(0)
        last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
    if not is_done:
        raise click.ClickException(f"{candidate.engine} ended with {made.returncode} before its first token: {last}")
    return taken


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(3), default=7, show_default=True)
@click.option("--only", default="", help="Models with this in their name.")
@click.option("--work", type=click.Path(path_type=Path), default="build/peers", show_default=True)
def main(rounds: int, only: str, work: Path) -> None:
    """Measure each model, and print a row of a table for each engine."""
    place = Place(work=work, pythons=pythons_of(()), progress=logged)
    click.echo("| model, int8 | engine | s | of txport |\n|---|---|---|---|")
    for name, peers in ((name, peers) for name, peers in CASES.items() if only in name):
        made = Candidate(engine=FOLDERS, model=Model(checkpoint=name))
        model = Model(checkpoint=str(place.prepare(made)) if name.startswith(FOLDER) else name, precision="int8")
        sides = [Candidate(engine=each, model=model) for each in (OURS, *(ENGINES + peer for peer in peers))]
        taken: dict[str, list[float]] = {each.engine: [] for each in sides}
        for number in range(1 + rounds):
            for each in sides[:: 1 if number % 2 else -1]:
                if each.engine not in taken:
                    continue
                try:
                    found = seconds(each, place)
                except click.ClickException as error:
                    if each.engine == OURS or number:
                        raise
                    click.echo(f"left out: {error.message}", err=True)  # one that was built for another processor
                    del taken[each.engine]
                    continue
                if number:
                    taken[each.engine].append(found)
        for engine, values in taken.items():
            ratio = np.median(np.divide(taken[OURS], values))
            click.echo(f"| {name} | {engine.removeprefix(ENGINES)} | {np.median(values):.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
