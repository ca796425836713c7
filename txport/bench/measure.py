"""Measure the speed of a bundle by phase, compared with PyTorch on the same machine.

Each runtime runs in a separate process, because idle thread pools of one slow down the others. Rounds of the runtimes
alternate, so that changes of the machine affect all of them. Figures are medians with quartiles.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport import runtimes
from txport.api.locate import open_bundle
from txport.api.release import load_source
from txport.bench import bandwidth
from txport.bench.rounds import UNITS as UNITS
from txport.bench.rounds import WORK, require_protocol
from txport.bench.rounds import Protocol as Protocol
from txport.bench.rounds import draw_source as draw_source
from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.checkpoints.folder import code_name, digest, label
from txport.errors import OutOfMemoryError, TextError, TxportError, UnavailableError, UnsupportedError, brief
from txport.models.facts import Facts
from txport.runtimes.base import Ints, QueuedRuntime, Runtime, Sizes
from txport.system import machine
from txport.system.documents import DocumentError, read_json
from txport.system.progress import Progress, logged
from txport.system.terminal import ENDING

WARM_UP = 3
BANDWIDTH = {
    "read bandwidth": "GB/s",  # of the machine, for as many bytes as a step reads, in the same rounds
    "bandwidth reached": "%",  # of a step: bytes of its weights / time, as a share of the read bandwidth
}
RATES = ("texts", "tokens", "prompt tokens", "new tokens")
PHASES = ("load", "encode", "prefill", "first token", "further token", *RATES, "peak memory")  # in the order shown


def run(
    bundle: Bundle,
    checkpoint: str | None,
    names: Sequence[str],
    protocol: Protocol,
    progress: Progress = logged,
    *,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Measure each runtime of `names`; return machine, versions, protocol, and quartiles by runtime and phase.

    Raises `UnsupportedError` for a protocol that the model does not support, `UnavailableError` if a process dies.
    """
    facts = bundle.manifest.facts
    require_protocol(facts, protocol)
    if trust_code and (checkpoint is None or not code_name(checkpoint)):
        raise UnsupportedError("trust_code=True is for a checkpoint that is a file and its adapter, model.py:NAME")
    if checkpoint is not None and not trust_code:
        bundle.require_source(label(checkpoint), digest(checkpoint))
    variant = bundle.manifest.variant if isinstance(bundle.manifest, ForeignManifest) else None
    arguments = (str(bundle.path), variant or None, checkpoint, protocol, trust_code)
    size = bandwidth.step_bytes(bundle, protocol.beams) if protocol.provider == "cpu" else None
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(f"runtime {name}", _work, name, *arguments))
            for name in dict.fromkeys(names)
        }
        reader = stack.enter_context(Worker("memory", _read, size, protocol.threads)) if size else None
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for number in range(WARM_UP + protocol.rounds):
            progress(f"round {number + 1} of {WARM_UP + protocol.rounds}")
            for name, worker in workers.items():
                times = worker.request("round")
                if number >= WARM_UP:
                    rounds[name].append(times)
            if reader and size:
                _reached(reader.request("round")["speed"], size, {n: each[-1] for n, each in rounds.items() if each})
        ends = {name: worker.request("end") for name, worker in workers.items()}
    return {
        "machine": machine.describe(),
        "versions": {**runtimes.versions_of(names), "python": platform.python_version()},
        "bundle": {"checkpoint": bundle.manifest.checkpoint, "precision": bundle.manifest.precision},
        "protocol": asdict(protocol),
        "units": {**WORK[facts.task].units, **(BANDWIDTH if size else {})},
        "same_tokens": len({each["digest"] for each in ends.values()}) == 1,
        "runtimes": {name: _figures(rounds[name], ends[name]) for name in workers},
    }


def _reached(speed: float, size: int, newest: dict[str, dict[str, float]]) -> None:
    """Add read bandwidth and bandwidth reached to the newest round of each runtime; `speed` is in bytes per second."""
    for name, times in newest.items():
        if name != "torch" and not runtimes.RUNTIMES[name].computes:  # excluded ones do not read the bundle's weights
            times["read bandwidth"] = speed / 1e9
            times["bandwidth reached"] = 100 * size / (1e-3 * times["further token"]) / speed


class Worker:
    """A process that measures one runtime, or the memory, and answers requests with figures."""

    def __init__(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        (self._pipe, theirs) = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        with _deaf():
            self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def request(self, what: str) -> dict[str, Any]:
        """Send a request and return its answer; raise the error of the process, or `UnavailableError` if it died."""
        try:
            with contextlib.suppress(BrokenPipeError):  # the process has ended, and may have sent its error
                self._pipe.send(what)
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise OutOfMemoryError(f"the process of {self._name} died; is there enough memory?") from error
        if "error" in answer:
            kind, message = answer["error"]
            raise kind(f"{self._name}: {message}")
        return answer

    def __exit__(self, *_: object) -> None:
        """Kill the process; it holds nothing that must be saved."""
        self._pipe.close()
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Block signals for a process that is started in this block: a terminal sends Ctrl-C to all, the parent ends it.

    Signals to this process are delayed until the block ends.
    """
    is_main = threading.current_thread() is threading.main_thread()  # only the main thread can set signal handlers
    if not is_main or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # otherwise it is started in the block, and unblocks signals
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _work(
    pipe: Connection,
    name: str,
    path: str,
    variant: str | None,
    checkpoint: str | None,
    protocol: Protocol,
    trust_code: bool,
) -> None:
    """Load a runtime, then answer requests until the pipe is closed."""
    if trust_code:
        sys.stdout = sys.stderr  # output of user code must not mix with figures
    try:
        started = time.perf_counter()
        bundle = open_bundle(Path(path), variant)
        bundle.require_weights()
        runtime = _load(name, bundle, checkpoint, protocol, trust_code)
        load = 1e3 * (time.perf_counter() - started)
        facts = bundle.manifest.facts
        source = draw_source(facts, protocol)
        _warm(runtime, facts, protocol)
        ids: Ints | None = None
        while True:
            if pipe.recv() == "round":
                times, ids = WORK[facts.task].round(runtime, source, facts, protocol)
                pipe.send(times)
            else:
                assert ids is not None
                digest = hashlib.sha256(ids.tobytes()).hexdigest()
                pipe.send({"load": load, "peak memory": machine.peak_memory(), "digest": digest})
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # the user sees any error in one line
        is_ours = isinstance(error, TxportError)
        told = (type(error), str(error)) if is_ours else (UnavailableError, f"{type(error).__name__}: {brief(error)}")
        with contextlib.suppress(BrokenPipeError):
            pipe.send({"error": told})


def _warm(runtime: Runtime, facts: Facts, protocol: Protocol) -> None:
    """Prepare the steps of all rounds; the warm-up rounds do the rest."""
    if isinstance(runtime, QueuedRuntime) and facts.generates:
        longest = protocol.tokens + facts.before_steps(protocol.source)
        top = 1 if protocol.beams == 1 else 2 * protocol.beams
        runtime.warm(Sizes(protocol.batch, protocol.beams, (protocol.source,), longest, (top,)))


def _read(pipe: Connection, size: int, threads: int | None) -> None:
    """Measure read bandwidth on request, until the pipe is closed."""
    reader = bandwidth.Reader(size, threads)
    try:
        while pipe.recv():
            pipe.send({"speed": reader.measure()})
    except (EOFError, BrokenPipeError):
        return


def _load(name: str, bundle: Bundle, checkpoint: str | None, protocol: Protocol, trust_code: bool) -> Runtime:
    if name != "torch":
        return runtimes.load(name, bundle, provider=protocol.provider, threads=protocol.threads)
    assert checkpoint is not None
    precision = bundle.manifest.arithmetic if protocol.provider == "cuda" else "fp32"
    model = load_source(bundle, checkpoint, trust_code=trust_code)
    bundle.require_source(model.name, model.sha256)
    return runtimes.load_torch(model, provider=protocol.provider, threads=protocol.threads, precision=precision)


def _figures(rounds: list[dict[str, float]], end: dict[str, float]) -> dict[str, dict[str, float]]:
    figures = {}
    known = {phase for phase, value in end.items() if not isinstance(value, float) or not math.isnan(value)}
    for phase in [phase for phase in (*PHASES, *BANDWIDTH) if phase in rounds[0] or phase in known]:
        values = [each[phase] for each in rounds] if phase in rounds[0] else [end[phase]]
        figures[phase] = quartiles(values)
    return figures


def quartiles(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the quartiles of the values of several rounds."""
    q1, median, q3 = np.percentile(values, (25, 50, 75))
    return {"q1": float(q1), "median": float(median), "q3": float(q3)}


def read_report(path: Path) -> dict[str, Any]:
    """Read an older report of `run`; raise `TextError` if the file is not a report."""
    try:
        report = read_json(path)
        for figures in report["runtimes"].values():
            figures.items()
        regressions(report, report, 0.0)  # checks all values that are compared
    except DocumentError as error:
        raise TextError(f"{error}; give a report of `txport bench --report`") from error
    except (AttributeError, ArithmeticError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise TextError(f"{path} is not a report of `txport bench`") from error
    return report


def regressions(old: dict[str, Any], new: dict[str, Any], allowed: float) -> list[str]:
    """Return one line per figure that is more than `allowed` percent worse, beyond the quartiles of both reports.

    With several runtimes, ratios to the first are compared, because the load of the machine changes them little. The
    time to load is measured once, and not compared.
    """
    require_same(old, new["protocol"], new["runtimes"])
    lines = []
    for name in list(new["runtimes"])[1:] or list(new["runtimes"]):
        for phase in (phase for phase in PHASES if phase in new["runtimes"][name] and phase != "load"):
            before, after = _costs(old, name, phase), _costs(new, name, phase)
            if after[0] > before[2] * (1 + allowed / 100):
                worse = 100 * (after[1] / before[1] - 1)
                lines.append(f"{name}: {phase} is {worse:.0f} % worse, allowed are {allowed:g} %")
    return lines


def require_same(old: dict[str, Any], protocol: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise `UnsupportedError` unless an older report has the same protocol and runtimes."""
    if old["protocol"] != dict(protocol) or list(old["runtimes"]) != list(names):
        raise UnsupportedError("the older report has another protocol or other runtimes; measure both in the same way")


def _costs(report: dict[str, Any], name: str, phase: str) -> tuple[float, float, float]:
    """Return figures for which less is better: the least, the median and the most that the quartiles allow.

    They are divided by the first runtime's if there are several.
    """
    figures = report["runtimes"]
    first = next(iter(figures))
    if missing := [each for each in (first, name) if phase not in figures[each]]:
        raise UnsupportedError(f"the report has no {phase} of {missing[0]}; measure it again")
    own, base = (_ordered(figures[each][phase], phase) for each in (name, first))
    if len(figures) == 1:
        return own
    return own[0] / base[2], own[1] / base[1], own[2] / base[0]


def _ordered(figure: Mapping[str, float], phase: str) -> tuple[float, float, float]:
    """Return the quartiles as costs, the least first; raise `ValueError` unless they are above 0."""
    low, median, high = (figure[key] for key in ("q1", "median", "q3"))
    if not 0 < low <= median <= high < math.inf:
        raise ValueError(f"{phase} is {low} to {high}, expected more than nothing")
    return (1 / high, 1 / median, 1 / low) if phase in RATES else (low, median, high)
