"""The processes of txport and its peers, which alternate and are kept for all lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.budget import TimeUp
from benchmarks.gpu.lines import COMPILED, CT2, EAGER, G2P, Line
from benchmarks.peers.engines import Model, Search
from benchmarks.peers.process import Worker, WorkerError
from txport.bench import measure as bench
from txport.bundles.bundle import Bundle
from txport.text.load import load_tokenizer

OURS, PYTORCH = "benchmarks.gpu.engines.txport_cuda", "benchmarks.gpu.engines.pytorch_cuda"
CTRANSLATE2 = "benchmarks.peers.engines.ct2"
LONGEST_WORD = 48


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how to measure: `device` as PyTorch and CTranslate2 name it, `compiler` a backend of torch.compile."""

    work: Path
    runtime: str = "ort"
    device: str = "cuda"
    compiler: str = "inductor"
    peers_python: Path | None = None
    rounds: int = 7

    @property
    def provider(self) -> str:
        """The short name of ONNX Runtime's provider."""
        return self.device


class Loaded(NamedTuple):
    """The versions of a side's packages, and the seconds to start, compile or capture, and search once."""

    versions: dict[str, str]
    seconds: float


@dataclass
class Sides:
    """The processes by name of the side; `absent` has the reason of each peer that could not run."""

    place: Place
    absent: dict[str, str] = field(default_factory=dict)
    _workers: dict[str, Worker] = field(default_factory=dict)

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._workers):
            self.stop(name)

    def stop(self, name: str) -> None:
        """End the process of a side, even if it is busy."""
        if name in self._workers:
            with contextlib.suppress(OSError):
                self._workers.pop(name).close()

    def worker(self, name: str) -> Worker:
        """Return the process of a side; start it at the first call."""
        if name not in self._workers:
            python = self.place.peers_python if name == CT2 else Path(sys.executable)
            assert python is not None
            log = self.place.work / f"{name.replace(' ', '-')}.log"
            self._workers[name] = Worker(python.absolute(), {}, log.absolute())
        return self._workers[name]

    def load(self, name: str, line: Line, bundle: Bundle, sources: Sequence[Sequence[int]]) -> Loaded:
        """Let a side load a line and run it once."""
        started = time.perf_counter()
        worker = self.worker(name)
        folder, engine, options = self._how(name, line, bundle, worker)
        if name == "txport":
            options["source_tokens"] = min(map(len, sources)), max(map(len, sources))
        search = search_of(line)
        asked = {"engine": engine, "folder": str(folder), "search": asdict(search), "options": options}
        versions: dict[str, str] = worker.request("load", **asked, sources=sources, batch=line.batch)["versions"]
        worker.request("round")
        return Loaded(versions, time.perf_counter() - started)

    def _how(self, name: str, line: Line, bundle: Bundle, worker: Worker) -> tuple[Path, str, dict[str, Any]]:
        """Return the folder of a side's weights, its engine and the engine's options; convert the weights if needed."""
        place = self.place
        if name == "txport":
            options = {"runtime": place.runtime, "provider": place.device, "batch_size": line.batch}
            return bundle.path, OURS, options
        if name in (EAGER, COMPILED):
            compiler = place.compiler if name == COMPILED else None
            options = {"precision": line.precision, "device": place.device, "compile": compiler}
            return place.work, PYTORCH, {**options, "checkpoint": line.checkpoint}
        folder = place.work.absolute() / f"ct2-{bundle.path.name}"
        if not folder.exists():
            model = Model(checkpoint=line.checkpoint, precision=line.precision)
            worker.request("prepare", engine=CTRANSLATE2, folder=str(folder), model=asdict(model))
        how = {"threads": 1, "workers": 1, "batch_size": line.batch, "device": place.device}
        return folder, CTRANSLATE2, how

    def compare(self, line: Line, bundle: Bundle, sources: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Measure a line: return seconds of each round, tokens, versions and loading times, by side.

        A peer that does not start is left out. Raises `WorkerError` if a side fails later.
        """
        try:
            return self._compare(line, bundle, sources)
        except (WorkerError, TimeUp):
            for name in ("txport", *line.peers):  # in whatever state
                self.stop(name)
            raise

    def _compare(self, line: Line, bundle: Bundle, sources: Sequence[Sequence[int]]) -> dict[str, Any]:
        names = ["txport"]
        loaded = {"txport": self.load("txport", line, bundle, sources)}
        for peer in line.peers:
            if peer == CT2 and self.place.peers_python is None:
                self.absent[peer] = "CTranslate2 is not installed; --peers-python names the Python of one that is"
            if peer in self.absent:
                continue
            try:
                loaded[peer] = self.load(peer, line, bundle, sources)
                names.append(peer)
            except WorkerError as error:
                self.absent[f"{line.name}: {peer}"] = str(error)
                self.stop(peer)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.place.rounds):
            for name in names if number % 2 else reversed(names):
                seconds[name].append(self.worker(name).request("round")["seconds"])
        tokens = {name: self.worker(name).request("tokens")["tokens"] for name in names}
        return {
            "seconds": seconds,
            "tokens": tokens,
            "versions": {name: each.versions for name, each in loaded.items()},
            "seconds to be ready": {name: each.seconds for name, each in loaded.items()},
        }


def search_of(line: Line) -> Search:
    """Return the search of a line; beam search over random weights is forced to the full length."""
    longest = LONGEST_WORD if line.checkpoint == G2P else line.tokens
    return Search(beams=line.beams, max_new_tokens=longest, forced=line.beams > 1 and line.checkpoint != G2P)


def sources_of(line: Line, bundle: Bundle, words: Mapping[str, Any] | None) -> list[list[int]]:
    """Return one batch: random ids with a fixed seed; for g2p-en, words, or the bundle's samples if None."""
    facts = bundle.manifest.facts
    if line.checkpoint == G2P:
        tokenizer = load_tokenizer(bundle.path, facts)
        known = list(words or bundle.samples)
        return [tokenizer.encode(known[number % len(known)]) for number in range(line.batch)]
    drawn = bench.draw_source(facts, bench.Protocol(batch=line.batch, source=line.source))
    return np.asarray(drawn).tolist()  # type: ignore[no-any-return]
