"""Several processes of one service: they share its port, load new bundles in turn, and are replaced when they die.

A supervisor starts them. A pipe connects it with each of them, and both ends call functions of the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from txport.errors import EngineError, TxportError, UnsupportedError
from txport.serving.service.asgi import Service
from txport.serving.service.metrics import SHARED
from txport.serving.service.models import Models
from txport.serving.service.server import Server, bound, config_of, listen, logged, reloading
from txport.system.terminal import deaf

logger = logging.getLogger("txport.serving")
SPAWN = multiprocessing.get_context("spawn")  # the threads of a runtime do not survive a fork
PAUSE = 2.0  # seconds until a process that has failed by itself is replaced, so that one that always fails is no load
WATCH = 0.1  # seconds between two looks at the engines
FAILED = 3  # exit code of a worker whose engine has failed
Make = Callable[[], Service]  # can be pickled


class Channel:
    """One end of a pipe between two event loops; `on_end` is called when the other process has ended."""

    def __init__(
        self, pipe: Connection, answers: Mapping[str, Callable[..., Awaitable[object]]], on_end: Callable[[], None]
    ) -> None:
        self._pipe = pipe
        self._answers = answers
        self._on_end = on_end
        self._is_open = True
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    async def call(self, name: str, *arguments: object) -> Any:
        """Return what a function of the other end returns; raise its error, or `EngineError` if it has gone."""
        future = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._calls[number] = future
        with contextlib.suppress(OSError):  # the other end is closed, which `_read` notices
            self._pipe.send((number, name, arguments))
        if not self._is_open:
            self._fail()
        return await future

    def _read(self) -> None:
        try:
            number, name, content = self._pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._is_open = False
            self._fail()
            self._on_end()
            return
        if name:
            task = asyncio.ensure_future(self._answer(number, self._answers[name](*content)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not (call := self._calls.pop(number)).done():
            (call.set_exception if isinstance(content, Exception) else call.set_result)(content)

    async def _answer(self, number: int, work: Awaitable[object]) -> None:
        try:
            content = await work
        except TxportError as error:
            content = error
        except Exception:
            logger.exception("failed")
            content = EngineError("a worker has failed; the log has the reason")
        with contextlib.suppress(OSError):
            self._pipe.send((number, "", content))

    def _fail(self) -> None:
        while self._calls:
            _, call = self._calls.popitem()
            if not call.done():
                call.set_exception(EngineError("the worker has ended; send the request again"))


@dataclass(eq=False)
class Worker:
    """A process of the service; `loaded` is done when its models are loaded, or could not be."""

    process: SpawnProcess
    ended: asyncio.Event
    loaded: asyncio.Future[None]
    channel: Channel


class Supervisor:
    """Starts the workers, replaces those that die, lets them load bundles again, and ends them."""

    def __init__(self, make: Make, listener: socket.socket, drain: float, folder: str) -> None:
        self._make = make
        self._listener = listener
        self._drain = drain
        self._folder = folder  # of metrics
        self._workers: set[Worker] = set()
        self._keepers: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()
        self._may_serve = asyncio.Event()
        self._ending = asyncio.Event()

    async def run(self, count: int, ready: Callable[[], None]) -> None:
        """Start workers, call `ready` when all are loaded, and supervise them until SIGINT or SIGTERM."""
        try:
            for number in (1, count - 1):  # the first one alone, as it may export a checkpoint
                await asyncio.gather(*(self._start().loaded for _ in range(number)))
            self._handle_signals()
            ready()
            self._may_serve.set()
            await self._ending.wait()
        finally:
            if not self._ending.is_set():
                self._end()
            while self._keepers:
                await asyncio.wait(self._keepers)

    async def reload(self, name: str | None = None) -> list[str]:
        """Let each worker load a bundle again, or all, one worker after the other, and return the names.

        Raises the error of the first, and then nothing has changed. If a later one fails, another process replaces it.
        """
        async with self._reloading:
            if not self._workers:
                raise EngineError("no worker has loaded its bundles; try again later")
            first, *others = sorted(self._workers, key=lambda worker: not worker.loaded.done())
            names: list[str] = await first.channel.call("reload", name)
            for worker in others:
                try:
                    await worker.channel.call("reload", name)
                except TxportError as error:
                    logger.error("not reloaded", extra={"fields": {"worker": worker.process.pid, "reason": str(error)}})
                    worker.process.terminate()
        return names

    def _start(self, *, is_verified: bool = False) -> Worker:
        ours, theirs = SPAWN.Pipe()
        arguments = (self._make, self._listener, theirs, self._drain, is_verified)
        process = SPAWN.Process(target=work, args=arguments, daemon=True)
        with deaf():
            process.start()
        theirs.close()
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def report(error: Exception | None) -> None:
            """Take note that the models are loaded, or why not; return when all workers may serve."""
            if error is None:
                loaded.set_result(None)
            else:
                loaded.set_exception(error)
            await self._may_serve.wait()

        ended = asyncio.Event()
        worker = Worker(process, ended, loaded, Channel(ours, {"report": report, "reload": self.reload}, ended.set))
        self._workers.add(worker)
        keeper = asyncio.ensure_future(self._keep(worker))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)
        return worker

    async def _keep(self, worker: Worker) -> None:
        """Wait for the end of a worker; start another one unless the service ends."""
        await worker.ended.wait()
        await asyncio.to_thread(worker.process.join)
        self._workers.discard(worker)
        pid, code = worker.process.pid, worker.process.exitcode
        mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]
        if not worker.loaded.done():
            worker.loaded.set_exception(EngineError(f"a worker ended with {code} while it loaded the models"))
        error = worker.loaded.exception()
        if self._ending.is_set() or not self._may_serve.is_set():
            return
        reason = {} if error is None else {"reason": str(error)}
        logger.error("another process replaces a worker", extra={"fields": {"worker": pid, "code": code, **reason}})
        if error is not None or code == FAILED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), PAUSE)
                return
        self._start(is_verified=True)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._end)
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGHUP, reloading(self.reload))

    def _end(self) -> None:
        """End all workers when their requests have ended, or at once if they already end."""
        for worker in self._workers:
            if self._ending.is_set():
                worker.process.kill()
            else:
                worker.process.terminate()
        self._listener.close()
        self._ending.set()


def supervise(make: Make, count: int, *, host: str, port: int, drain: float, told: Callable[[str], None]) -> None:
    """Serve in `count` processes, as `serve` does in this one; a worker that dies fails only the requests it has.

    Raises `UnsupportedError` on Windows, and the errors of `serve`.
    """
    if sys.platform == "win32":
        raise UnsupportedError("several workers need Linux or macOS; here, start several services behind a proxy")
    with logged(), contextlib.closing(bound(host, port)) as listener, _shared_metrics() as folder:
        asyncio.run(Supervisor(make, listener, drain, folder).run(count, lambda: told(listen(listener))))


@contextlib.contextmanager
def _shared_metrics() -> Iterator[str]:
    """Let the workers that start in this block count in files of one folder, so that each can tell the sums."""
    with tempfile.TemporaryDirectory(prefix="txport-metrics-") as folder:
        os.environ[SHARED] = folder
        try:
            yield folder
        finally:
            del os.environ[SHARED]


def work(make: Make, listener: socket.socket, pipe: Connection, drain: float, is_verified: bool) -> None:
    """Serve in a process of a supervisor until SIGTERM, or until the supervisor has ended.

    If an engine fails, exit with `FAILED` when the requests of the other models have ended.
    """
    with logged(), contextlib.closing(listener):
        asyncio.run(_work(make(), listener, pipe, drain, is_verified))


async def _work(service: Service, listener: socket.socket, pipe: Connection, drain: float, is_verified: bool) -> None:
    models = service.models
    server = Server(config_of(service, drain), lambda: None, lambda: None)
    started = asyncio.Event()

    async def reload(name: str | None) -> list[str]:
        await started.wait()
        return await models.reload(name)

    channel = Channel(pipe, {"reload": reload}, lambda: setattr(server, "should_exit", True))
    models.reload_all = partial(channel.call, "reload")
    problem: Exception | None = None
    try:
        await models.start(is_verified=is_verified)
    except Exception as error:
        problem = error
    started.set()
    has_failed = False
    with contextlib.suppress(EngineError):  # the supervisor has ended
        await channel.call("report", problem)
        if problem is None:
            watching = asyncio.ensure_future(_watch(models, server))
            await server.serve(sockets=[listener])
            has_failed = not watching.cancel()
    await models.close()
    if has_failed:
        sys.exit(FAILED)


async def _watch(models: Models, server: Server) -> None:
    """End the server when an engine has failed: its requests have failed, and others would, too."""
    while all(each.is_open for each in models):
        await asyncio.sleep(WATCH)
    server.should_exit = True
