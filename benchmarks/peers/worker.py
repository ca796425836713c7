"""A process that runs one engine: requests and answers are lines of JSON on stdin and stdout.

python -m benchmarks.peers.worker

    {"do": "prepare", "engine": MODULE, "folder": PATH, "model": {...}}                    -> {}
    {"do": "load", "engine": MODULE, "folder": PATH, "search": {...}, "options": {...},
     "sources": [[ids], ...] or PATH, "batch": SIZE or null, "after_first": false}        -> {"versions": {...}}
    {"do": "round"}   every source once, in batches of that size, null: all in one call    -> {"seconds": S}
    {"do": "tokens"}  the targets of the latest round                                     -> {"tokens": [[ids], ...]}
    {"do": "score"}   a few sources, each with tokens of another source         -> {"log_probs": [[...], ...] or null}
    {"do": "memory"}  the peak memory of the process so far                               -> {"peak": MB}

The PATH of sources is a .npy file of features. With "after_first", the time of a round is that of all tokens minus
that of the first one. An answer can be {"error": TEXT} instead. Prints of libraries go to stderr.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from benchmarks.peers.engines import Engine, FirstEngine, Model, ScoringEngine, Search, Sources
from txport.system import machine

SCORED = 4  # sources, and tokens after each
WARM_UP = 32  # untimed sources (or one batch) before each round, since the other process has replaced the CPU's caches
Request = dict[str, Any]


class Session:
    """An engine, its inputs, and its latest outputs."""

    def __init__(self, engine: Engine, sources: Sources, batch: int | None, after_first: bool = False) -> None:
        self._engine = engine
        self._after_first = after_first
        self._inputs = [engine.encode(each) for each in in_order(sources, batch or len(sources))]
        self._sources = sources
        self._first = engine.encode(sources[: batch or WARM_UP])
        self._outputs: list[Any] = []

    def round(self) -> dict[str, Any]:
        """Generate for every source once; return the seconds."""
        self._engine.generate(self._first)
        seconds, self._outputs = self._timed(self._engine.generate)
        if self._after_first:
            seconds -= self._timed(cast(FirstEngine, self._engine).first)[0]
        return {"seconds": seconds}

    def _timed(self, search: Callable[[Any], Any]) -> tuple[float, list[Any]]:
        started = time.perf_counter()
        outputs = [search(inputs) for inputs in self._inputs]
        return time.perf_counter() - started, outputs

    def tokens(self) -> dict[str, Any]:
        """Return the targets of the latest round, one per source."""
        return {"tokens": [target for outputs in self._outputs for target in self._engine.decode(outputs)]}

    def score(self) -> dict[str, Any]:
        """Return log-probs of a few tokens of one source after another source; None if the engine can't score."""
        if not isinstance(self._engine, ScoringEngine) or isinstance(self._sources, np.ndarray):
            return {"log_probs": None}
        sources = self._sources[:SCORED]
        targets = [source[1 : 1 + SCORED] for source in reversed(sources)]
        return {"log_probs": self._engine.score(sources, targets)}


def in_order(sources: Sources, size: int) -> list[Sources]:
    """Split sources into batches of `size`; the last may be smaller."""
    return [sources[start : start + size] for start in range(0, len(sources), size)]


def prepare(request: Request) -> None:
    """Convert a checkpoint to the engine's format; the folder is created atomically."""
    from txport.system.files import staged_folder

    engine = importlib.import_module(request["engine"])
    with staged_folder(Path(request["folder"])) as folder:
        engine.prepare(Model(**request["model"]), folder)


def load(request: Request) -> tuple[Session, dict[str, str]]:
    """Load an engine; return its session and the versions of its packages."""
    module = importlib.import_module(request["engine"])
    engine: Engine = module.Engine(Path(request["folder"]), Search(**request["search"]), request["options"])
    sources = request["sources"] if isinstance(request["sources"], list) else np.load(request["sources"])
    session = Session(engine, sources, request["batch"], request.get("after_first", False))
    return session, versions(module.PACKAGES)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # only one of the two wheels of ONNX Runtime is installed
            continue
    return found


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until the input is closed."""
    session: Session | None = None
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match request["do"]:
                case "prepare":
                    prepare(request)
                case "load":
                    session, answer["versions"] = load(request)
                case "memory":
                    answer["peak"] = machine.peak_memory()
                case what:
                    assert session is not None
                    answer = {"round": session.round, "score": session.score, "tokens": session.tokens}[what]()
        except Exception as error:  # any error is reported to the user in one line
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Serve requests; reserve stdout for answers, also against libraries that write to the file descriptor."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
