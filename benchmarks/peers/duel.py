"""Measurement of one line: find the best setting of each side, then alternate both sides in separate processes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import candidates
from benchmarks.peers.candidates import Candidate
from benchmarks.peers.engines import Model, Sources
from benchmarks.peers.engines.hf_folder import FOLDER
from benchmarks.peers.environments import REQUIREMENTS, environment_of
from benchmarks.peers.lines import Line, Task, search_of, sources_of
from benchmarks.peers.process import ROOT, Worker, WorkerError
from txport.bench.measure import quartiles
from txport.checkpoints.folder import digest, label
from txport.system.files import hash_of, sha256
from txport.system.progress import Progress, logged

TRIALS, BRIEFLY = 5, 4.0  # maximum number of rounds, and seconds after which no round begins
AGREED = Task(batch=1, sources=2, tokens=8)  # checks in fp32 that both conversions of a folder find the same tokens
ALIKE = 0.2  # mean difference of log-probs: below it for two kinds of int8, above it for other weights
SAME = 1e-6  # 1 - cosine of vectors in fp32
PACKAGE = ROOT / "txport"
Side = tuple[Worker, Candidate]
digest_once = functools.cache(digest)  # for files of several GB


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how to measure."""

    work: Path
    pythons: Mapping[str, Path]  # of each environment
    words: Path | None = None
    cores: int = 1
    rounds: int = 9
    progress: Progress = logged
    tried: dict[str, dict[str, Any]] = field(default_factory=dict)  # results that several lines share

    def start(self, candidate: Candidate) -> Worker:
        """Start a process for a candidate."""
        own = candidate.engine in candidates.OWN
        python = Path(sys.executable) if own else self.pythons[environment_of(candidate.engine)]
        log = self.work / f"{candidate.engine.rpartition('.')[2]}.log"
        return Worker(python.absolute(), candidate.environment, log.absolute())

    def folder(self, candidate: Candidate) -> Path:
        """Return the folder of a candidate's weights; its name depends on the checkpoint and the converter."""
        model = candidate.model
        engine = candidate.engine.rpartition(".")[2]
        requirements = REQUIREMENTS / f"{environment_of(candidate.engine)}.txt"
        made_by = sorted(PACKAGE.rglob("*.py")) if candidate.engine in candidates.OWN else [requirements]
        written_by = sorted((REQUIREMENTS.parent / "engines").glob(f"{engine}*.py"))
        sources = {str(path): sha256(path) for path in [*made_by, *written_by]}
        made = model.checkpoint if candidate.engine == candidates.FOLDERS else digest_once(model.checkpoint)
        stamp = hash_of({**sources, "checkpoint": made})[:12]
        name = label(model.checkpoint).replace(":", "-")
        rows = f"-rows{model.rows}" if model.rows else ""
        return self.work.absolute() / f"{engine}-{name}-{model.precision}{rows}-{stamp}"

    def prepare(self, candidate: Candidate) -> Path:
        """Convert the weights unless an earlier run did; return their folder."""
        folder = self.folder(candidate)
        if not folder.exists():
            self.progress(f"  prepare {folder.name}")
            with self.start(candidate) as worker:
                worker.request("prepare", engine=candidate.engine, folder=str(folder), model=asdict(candidate.model))
        return folder

    def located(self, line: Line) -> Line:
        """Return the line; the name of a folder that both sides convert is replaced by its path, and it is written."""
        if not line.task.checkpoint.startswith(FOLDER):
            return line
        made = self.prepare(Candidate(engine=candidates.FOLDERS, model=Model(checkpoint=line.task.checkpoint)))
        return replace(line, task=replace(line.task, checkpoint=str(made)))

    def sent(self, sources: Sources) -> Any:
        """Return sources as a request contains them: ids, or the path of a file with features."""
        if not isinstance(sources, np.ndarray):
            return sources
        path = self.work.absolute() / "features.npy"
        np.save(path, sources)
        return str(path)

    def load(self, worker: Worker, candidate: Candidate, task: Task, sources: Sources) -> dict[str, str]:
        """Let a process load a candidate and run it once; return the versions of its packages."""
        answer = worker.request(
            "load",
            engine=candidate.engine,
            folder=str(self.prepare(candidate)),
            search=asdict(search_of(task)),
            options=candidate.options,
            sources=self.sent(sources),
            batch=task.batch,
            after_first=task.after_first,
        )
        worker.request("round")
        versions: dict[str, str] = answer["versions"]
        return versions


def run(line: Line, place: Place) -> dict[str, Any]:
    """Measure a line; return its record: quartiles of both sides and of the ratio, settings, candidates, equal rows."""
    place.progress(line.title)
    named = line
    line = place.located(line)
    sources = sources_of(line.task, place.words)
    agreed = require_agreement(line, sources, place) if named.task.converted else None
    sides = {"txport": candidates.ours(line, place.cores), "peer": candidates.theirs(line, place.cores)}
    tried = {name: [try_once(each, line, sources, place) for each in options] for name, options in sides.items()}
    first = fastest(tried["txport"])
    tried["peer"] = [alike_to(tried["txport"][first], each) for each in tried["peer"]]
    best = {"txport": sides["txport"][first], "peer": sides["peer"][fastest(tried["peer"])]}
    with place.start(best["txport"]) as our_worker, place.start(best["peer"]) as their_worker:
        our_side = (our_worker, best["txport"])
        their_side = (their_worker, best["peer"])
        record = compare(our_side, their_side, line, sources, place)
    return {
        **describe(named),
        **record,
        "search": asdict(search_of(line.task)),
        "tokens_agreed_in_fp32": agreed,
        "settings": {name: setting_of(candidate) for name, candidate in best.items()},
        "candidates": {name: [without_scores(each) for each in found] for name, found in tried.items()},
    }


def describe(line: Line) -> dict[str, Any]:
    """Return the description of a line for its record."""
    start = {"name": line.name, "against": line.against, "unit": line.unit, "required": line.required}
    return {**start, "task": asdict(replace(line.task, checkpoint=label(line.task.checkpoint)))}


def setting_of(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate for a record, without paths of this machine."""
    model = replace(candidate.model, checkpoint=label(candidate.model.checkpoint))
    return asdict(replace(candidate, model=model))


def try_once(candidate: Candidate, line: Line, sources: Sources, place: Place) -> dict[str, Any]:
    """Return the result of `try_out`, cached for later lines."""
    key = json.dumps([asdict(candidate), asdict(line.task)])
    if key not in place.tried:
        place.tried[key] = try_out(candidate, line, sources, place)
    return place.tried[key]


def require_agreement(line: Line, sources: Sources, place: Place) -> int:
    """Return the number of tokens that both sides found with their own conversions in fp32; 0 for vectors.

    Raises `WorkerError` if the tokens or the vectors differ. int8 need not agree.
    """
    task = replace(AGREED, checkpoint=line.task.checkpoint, encodes=line.task.encodes)
    short = replace(line, task=task, precisions=("fp32",))
    theirs = candidates.theirs(short, place.cores)[0]
    theirs = replace(theirs, model=replace(theirs.model, precision="fp32"))
    key = f"agreement of {line.task.checkpoint} with {theirs.engine}"
    if key in place.tried:
        return int(place.tried[key]["tokens"])
    found = []
    for candidate in (candidates.ours(short, place.cores)[0], theirs):
        with place.start(candidate) as worker:
            place.load(worker, candidate, task, sources[: task.sources])
            found.append(worker.request("tokens")["tokens"])
    if task.encodes:
        if (apart := cosine_apart(*found)) > SAME:
            raise WorkerError(f"in fp32, 1 - cosine of both sides' vectors is {apart:.1g}, expected at most {SAME}")
        place.tried[key] = {"tokens": 0}
        return 0
    if found[0] != found[1]:
        raise WorkerError(f"in fp32, txport found {found[0]} and the peer {found[1]}, expected the same tokens")
    tokens = [token for target in found[0] for token in target]
    place.progress(f"  fp32: both sides found the same {len(tokens)} tokens, {len(set(tokens))} different ones")
    place.tried[key] = {"tokens": len(tokens)}
    return len(tokens)


def try_out(candidate: Candidate, line: Line, sources: Sources, place: Place) -> dict[str, Any]:
    """Run a few rounds of one candidate; return its median seconds and its rate, or the error if it can't run."""
    record: dict[str, Any] = {"setting": candidate.label}
    try:
        with place.start(candidate) as worker:
            place.load(worker, candidate, line.task, sources)
            seconds = trials(worker)
            scores = None if line.task.encodes else worker.request("score")["log_probs"]
    except WorkerError as error:
        return {**record, "error": str(error)}
    median = float(np.median(seconds))
    place.progress(
        f"  {candidate.engine.rpartition('.')[2]}: {candidate.label}: {amount(line, sources) / median:.0f} 1/s"
    )
    return {**record, "seconds": median, "rate": amount(line, sources) / median, "log_probs": scores}


def alike_to(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a peer's candidate: with an error if it does not compute what ours does.

    oneDNN's int8, which CTranslate2 has on AMD, saturates on processors without VNNI.
    """
    apart = distance(ours.get("log_probs"), theirs.get("log_probs"))
    if apart is None or apart <= ALIKE:
        return theirs
    what = f"both sides' log-probs of given tokens are {apart:.3f} apart, expected at most {ALIKE}"
    return {"setting": theirs["setting"], "error": what}


def distance(ours: Any, theirs: Any) -> float | None:
    """Return the mean difference of log-probs of given tokens; None if an engine can't score.

    Quantisation causes a few hundredths.
    """
    if ours is None or theirs is None:
        return None
    return float(np.abs(np.concatenate(ours) - np.concatenate(theirs)).mean())


def without_scores(tried: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a trial as it is recorded."""
    return {name: value for name, value in tried.items() if name != "log_probs"}


def trials(worker: Worker) -> list[float]:
    """Return the seconds of up to `TRIALS` rounds; fewer if they are long."""
    seconds: list[float] = []
    while len(seconds) < TRIALS and sum(seconds) < BRIEFLY:
        seconds.append(worker.request("round")["seconds"])
    return seconds


def fastest(tried: Sequence[dict[str, Any]]) -> int:
    """Return the index of the fastest candidate; raise `WorkerError` if none could run."""
    running = [number for number, each in enumerate(tried) if "seconds" in each]
    if not running:
        raise WorkerError(tried[0]["error"])
    return min(running, key=lambda number: float(tried[number]["seconds"]))


def compare(ours: Side, theirs: Side, line: Line, sources: Sources, place: Place) -> dict[str, Any]:
    """Alternate both sides and return the figures; the idle side is stopped, and the order changes in each round."""
    versions = {}
    for name, (worker, candidate) in (("txport", ours), ("peer", theirs)):
        versions[name] = place.load(worker, candidate, line.task, sources)
        worker.pause()
    workers = {"txport": ours[0], "peer": theirs[0]}
    seconds: dict[str, list[float]] = {"txport": [], "peer": []}
    for number in range(place.rounds):
        for name in sorted(workers, reverse=number % 2 == 0):
            seconds[name].append(workers[name].request("round")["seconds"])
            workers[name].pause()
    tokens = {name: worker.request("tokens")["tokens"] for name, worker in workers.items()}
    require_length(line, tokens)
    memory = {name: worker.request("memory")["peak"] for name, worker in workers.items()}  # before scores
    apart = distance(*(worker.request("score")["log_probs"] for worker in workers.values()))
    return {
        **figures(line, sources, seconds, memory),
        "log_probs_apart": apart,
        **alike(line, tokens),
        "rows": len(sources),
        "peak_memory": memory,
        "versions": versions,
    }


def figures(line: Line, sources: Sources, seconds: dict[str, list[float]], memory: dict[str, float]) -> dict[str, Any]:
    """Return quartiles of the line's unit, and of the ratio per round (above 1: txport is better).

    Raises `WorkerError` if the peak memory is needed and unknown.
    """
    if line.unit == "MB":
        if np.isnan(list(memory.values())).any():
            raise WorkerError("this system does not tell a process its peak memory")
        measured = {name: np.array([value], dtype=float) for name, value in memory.items()}
        ratio = measured["peer"] / measured["txport"]
    else:
        measured = {name: amount(line, sources) / np.array(values) for name, values in seconds.items()}
        ratio = measured["txport"] / measured["peer"]
    return {**{name: quartiles(values) for name, values in measured.items()}, "ratio": quartiles(ratio)}


def amount(line: Line, sources: Sources) -> int:
    """Return the amount of work of a round, in the line's unit: prompt tokens, sources, or generated tokens."""
    if line.unit == "prompt tokens/s":
        return sum(map(len, sources))
    if line.unit == "windows/s" or not line.task.forced:
        return len(sources)
    return len(sources) * (search_of(line.task).max_new_tokens - line.task.after_first)


def require_length(line: Line, tokens: dict[str, list[list[int]]]) -> None:
    """Raise `WorkerError` if a side generated fewer or more tokens than required."""
    wanted = search_of(line.task).max_new_tokens
    for name, targets in tokens.items():
        lengths = {len(target) for target in targets}
        if line.task.forced and lengths != {wanted}:
            raise WorkerError(f"the {name} side generated {sorted(lengths)} tokens a source, expected {wanted}")


def alike(line: Line, found: dict[str, list[list[Any]]]) -> dict[str, float]:
    """Return the number of equal targets, or for vectors the mean of 1 - cosine."""
    if line.task.encodes:
        return {"cosine_apart": cosine_apart(found["txport"], found["peer"])}
    return {"equal_rows": equal_rows(found["txport"], found["peer"])}


def cosine_apart(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Return the mean of 1 - cosine of vectors."""
    a, b = (np.array(each) / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
    return float(np.mean(1 - (a * b).sum(axis=1)))


def equal_rows(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> int:
    """Return the number of sources for which both sides found the same target."""
    return sum(list(a) == list(b) for a, b in zip(first, second, strict=True))
