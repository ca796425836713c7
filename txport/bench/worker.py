"""Processes that measure: each runtime has its own, because idle thread pools of one slow down the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from txport import runtimes
from txport.api.locate import open_bundle
from txport.api.release import load_source
from txport.bench import bandwidth
from txport.bench.candidates import TORCH, Candidate
from txport.bench.plan import Plan
from txport.bench.rounds import WORK, Protocol, draw_source
from txport.bench.server import Server
from txport.bench.streams import Stream
from txport.bundles.bundle import Bundle
from txport.errors import OutOfMemoryError, TxportError, UnavailableError, brief
from txport.models.facts import Facts
from txport.runtimes.base import QueuedRuntime, Runtime, Sizes
from txport.system import machine
from txport.system.terminal import deaf

ROUND = 0.02  # least seconds of a round: candidates take short turns, so that noise of the machine meets all of them


class LateError(UnavailableError):
    """A process did not answer in time."""


class Worker:
    """A process that measures one runtime, or the memory, and answers requests with figures."""

    def __init__(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        (self._pipe, theirs) = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        with deaf():
            self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def request(self, what: str, *arguments: object, end: float | None = None) -> dict[str, Any]:
        """Send a request and return its answer; raise the error of the process, or `UnavailableError` if it died.

        Raises `LateError` if there is no answer at the time `end`, in seconds of `time.monotonic`.
        """
        try:
            with contextlib.suppress(BrokenPipeError):  # the process has ended, and may have sent its error
                self._pipe.send((what, *arguments))
            if not self._pipe.poll(None if end is None else max(0.0, end - time.monotonic())):
                raise LateError(f"{self._name} did not answer in time; give a larger budget")
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


def start(candidate: Candidate, plan: Plan, trust_code: bool) -> Worker:
    """Start the process of a candidate; `Session` has its requests."""
    place = (str(candidate.bundle.path), candidate.variant, candidate.checkpoint)
    return Worker(f"runtime {candidate.label}", work, candidate.runtime, *place, plan, trust_code)


def start_reader(size: int, threads: int | None) -> Worker:
    """Start a process that measures read bandwidth of `size` bytes on the request `read`."""
    return Worker("memory", _read, size, threads)


class Session:
    """A loaded runtime: its methods answer the requests of the parent, with figures in milliseconds and MB."""

    def __init__(self, name: str, bundle: Bundle, checkpoint: str | None, plan: Plan, trust_code: bool) -> None:
        begun = time.perf_counter()
        bundle.require_weights()
        self._runtime = _load(name, bundle, checkpoint, plan, trust_code)
        self._load = 1e3 * (time.perf_counter() - begun)
        self._facts = bundle.manifest.facts
        self.stream = Stream(bundle, self._runtime)
        self.server = Server(self.stream)

    def start(self, size: Protocol, opened: float) -> dict[str, object]:
        """Return the time to load, and that of the first run; `opened` are the milliseconds until the session began."""
        begun = time.perf_counter()
        self.run(size)
        return {"load": opened + self._load, "first run": 1e3 * (time.perf_counter() - begun)}

    def run(self, size: Protocol) -> dict[str, object]:
        """Run a size once; return its tokens, and the peak memory of the process so far."""
        _warm(self._runtime, self._facts, size)
        _, ids = self._once(size)
        return {"ids": ids.ravel().tolist(), "peak memory": machine.peak_memory()}

    def round(self, size: Protocol) -> dict[str, Any]:
        """Repeat a size for `ROUND` seconds; return the median of each phase."""
        runs: list[dict[str, float]] = []
        end = time.perf_counter() + ROUND
        while not runs or time.perf_counter() < end:
            runs.append(self._once(size)[0])
        return {phase: float(np.median([each[phase] for each in runs])) for phase in runs[0]}

    def memory(self) -> dict[str, Any]:
        """Return the peak memory of the process."""
        return {"peak memory": machine.peak_memory()}

    def _once(self, size: Protocol) -> Any:
        source = draw_source(self._facts, size)
        return WORK[self._facts.task].round(self._runtime, source, self._facts, size, time.perf_counter)


def work(
    pipe: Connection,
    name: str,
    path: str,
    variant: str | None,
    checkpoint: str | None,
    plan: Plan,
    trust_code: bool,
) -> None:
    """Load a runtime, then answer requests until the pipe is closed."""
    if trust_code:
        sys.stdout = sys.stderr  # output of user code must not mix with figures
    with errors_sent(pipe):
        begun = time.perf_counter()
        bundle = open_bundle(Path(path), variant)
        opened = 1e3 * (time.perf_counter() - begun)
        session = Session(name, bundle, checkpoint, plan, trust_code)
        while True:
            what, *arguments = pipe.recv()
            if what == "start":
                arguments.append(opened)
            of = next(each for each in (session, session.stream, session.server) if hasattr(each, what))
            pipe.send(getattr(of, what)(*arguments))


@contextlib.contextmanager
def errors_sent(pipe: Connection) -> Iterator[None]:
    """Send an error of this block to the parent; end the block quietly once the pipe is closed."""
    try:
        yield
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # the user sees any error in one line
        is_ours = isinstance(error, TxportError)
        told = (type(error), str(error)) if is_ours else (UnavailableError, f"{type(error).__name__}: {brief(error)}")
        with contextlib.suppress(BrokenPipeError):
            pipe.send({"error": told})


def _load(name: str, bundle: Bundle, checkpoint: str | None, plan: Plan, trust_code: bool) -> Runtime:
    if name != TORCH:
        return runtimes.load(name, bundle, provider=plan.provider, threads=plan.threads)
    assert checkpoint is not None
    precision = bundle.manifest.arithmetic if plan.provider == "cuda" else "fp32"
    model = load_source(bundle, checkpoint, trust_code=trust_code)
    bundle.require_source(model.name, model.sha256)
    return runtimes.load_torch(model, provider=plan.provider, threads=plan.threads, precision=precision)


def _warm(runtime: Runtime, facts: Facts, size: Protocol) -> None:
    """Prepare the steps of all rounds; the warm-up rounds do the rest."""
    if isinstance(runtime, QueuedRuntime) and facts.generates:
        longest = size.tokens + facts.before_steps(size.source)
        top = 1 if size.beams == 1 else 2 * size.beams
        runtime.warm(Sizes(size.batch, size.beams, (size.source,), longest, (top,)))


def _read(pipe: Connection, size: int, threads: int | None) -> None:
    """Measure read bandwidth on request, until the pipe is closed."""
    reader = bandwidth.Reader(size, threads)
    with errors_sent(pipe):
        while pipe.recv():
            pipe.send({"speed": reader.measure()})
