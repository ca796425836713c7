"""The service on uvicorn: its socket, its signals, slow callers, and its log as lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from txport.errors import TxportError, UnavailableError
from txport.serving.service.asgi import PATHS, Service

logger = logging.getLogger("txport.serving")
HEADER_SECONDS = 10.0  # until the headers of a request have arrived
MAX_HEADERS = 1 << 16  # bytes
MAX_BACKLOG = 2048  # connections that are accepted at once
OTHER_FILES = 256  # open files that are no connections
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
FRAMING = (b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade")
FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Room(NamedTuple):
    """Connections that a process may have, and those that it accepts at once, while others wait in the system."""

    most: int
    backlog: int


def make_room() -> Room:
    """Allow this process as many open files as the system lets it have, often more than it has; return the room.

    The rest of the files are for bundles, and for what is accepted before it can be refused: a process without files
    can't even do that, and asyncio then writes thousands of lines of log.
    """
    if sys.platform == "win32":  # its sockets are no files
        return Room(1 << 20, MAX_BACKLOG)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit that can't be set
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    files = 1 << 20 if soft == resource.RLIM_INFINITY else soft
    backlog = max(1, min(MAX_BACKLOG, files // 4))
    return Room(max(1, files - backlog - min(OTHER_FILES, files // 4)), backlog)


class Lines(logging.Formatter):
    """Formats a record as one line of JSON, with the `fields` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, object] = {"time": f"{stamp}.{record.msecs:03.0f}Z", "level": record.levelname.lower()}
        told |= {"message": record.getMessage(), "process": record.process, **getattr(record, "fields", {})}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """Write the log of the service to stderr, and the warnings of uvicorn and asyncio."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    levels = {"txport": logging.INFO, "uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        for name, (level, propagates) in before.items():
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = propagates


# States of a request whose body is there
WHOLE = (h11.DONE, h11.MUST_CLOSE, h11.MIGHT_SWITCH_PROTOCOL)  # type: ignore[attr-defined]


class Patient(H11Protocol):
    """HTTP/1.1 that answers 408 to a caller whose headers take more than `HEADER_SECONDS`, and 503 beyond `most`.

    While no model has room, it answers 429 before a request costs anything.
    """

    most = 1 << 20  # connections
    service: Service
    _unread = 0  # bytes of the body of a refused request that are to come
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(FULL)
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for headers unless a request runs."""
        if self._unread:
            rest = data[self._unread :]
            self._unread -= len(data) - len(rest)
            data = rest
        models, was_whole = self.service.models, self.conn.their_state in WHOLE
        if not data or (models.full(models.entering) is not None and self._is_refused(data)):
            return
        super().data_received(data)
        is_whole = self.conn.their_state in WHOLE and not was_whole  # a body may take long to arrive
        is_open = self.cycle is not None and not self.cycle.response_complete
        if is_whole and is_open and self.scope["path"] in PATHS:
            models.enter(self.scope["state"])
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def _is_refused(self, data: bytes) -> bool:
        """Answer a request that is refused; return False for others."""
        is_first = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        path, unread = beginning(data) if is_first else ("", 0)
        if (failure := self.service.refusal(path)) is None:
            return False
        self._unread = unread
        body = json.dumps(failure.body("")).encode()
        headers = {"content-type": "application/json", **(failure.headers or {}), "content-length": len(body)}
        head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        self._stop_waiting()
        self.transport.write(f"HTTP/1.1 {failure.status} Too Many Requests\r\n{head}\r\n".encode() + body)
        self.on_response_complete()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._expire)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TIMEOUT)
            self.transport.close()


def beginning(data: bytes) -> tuple[str, int]:
    """Return the path of a POST that begins with `data`, and the bytes of its body that are to come.

    The path is "" if the request is not spelled as usual, has a large body, or if its connection does not stay open.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    first, *lines = head.lower().split(b"\r\n")
    framing = [line for line in lines if line.startswith(FRAMING) and line != b"connection: keep-alive"]
    size = re.fullmatch(rb"content-length: (\d{1,5})", framing[0]) if end and len(framing) == 1 else None
    found = re.fullmatch(rb"post (\S+) http/1\.1", first)
    if size is None or found is None or len(body) > int(size[1]):
        return "", 0
    return found[1].decode("latin-1"), int(size[1]) - len(body)


class Server(uvicorn.Server):
    """uvicorn's server: it calls `on_start` when it listens, and `on_hangup` at SIGHUP.

    SIGINT and SIGTERM end it when its requests have ended.
    """

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None], on_hangup: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_start = on_start
        self._on_hangup = on_hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call `on_start`."""
        await super().startup(sockets)
        self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the event loop, and do not raise them again: an end that was asked for is no error."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], object]] = {
            number: functools.partial(self.handle_exit, number, None) for number in (signal.SIGINT, signal.SIGTERM)
        }
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._on_hangup
        try:
            for number, handler in handlers.items():
                loop.add_signal_handler(number, handler)
        except NotImplementedError:  # an event loop of Windows
            with super().capture_signals():
                yield
            return
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


def serve(service: Service, *, host: str, port: int, drain: float, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then up to `drain` seconds for the requests that run.

    The port is bound first, and refuses connections until all models are loaded; then `told` gets the address. Raises
    `UnavailableError` if the port can't be opened, and the errors of loading the models.
    """
    with logged(), contextlib.closing(bound(host, port)) as listener:
        asyncio.run(_serve(service, listener, drain, told))


@contextlib.contextmanager
def _refused(host: str, port: int) -> Iterator[None]:
    """Raise `UnavailableError` for an address that can't be had."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # a name of a host may be no name of IDNA
        why = getattr(error, "strerror", None) or error
        raise UnavailableError(f"can't listen on {host} port {port}: {why}") from error


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and refuses connections until it listens; port 0 is any free one.

    It names its protocol, unlike that of `socket.create_server`: otherwise asyncio leaves Nagle's algorithm on, and an
    answer, of two writes, waits 40 ms for an acknowledgement.
    """
    with _refused(host, port):
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        return listener


def listen(listener: socket.socket) -> str:
    """Accept connections, and return the address; raise `UnavailableError` if another listens at it by now."""
    host, port = listener.getsockname()[:2]
    with _refused(host, port):
        listener.listen()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def config_of(service: Service, drain: float) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    room = make_room()
    options: dict[str, Any] = {
        "http": type("Patient", (Patient,), {"most": room.most, "service": service}),
        "backlog": room.backlog, "ws": "none",
        "lifespan": "on", "loop": "asyncio", "log_config": None, "access_log": False,
        "server_header": False, "h11_max_incomplete_event_size": MAX_HEADERS, "timeout_graceful_shutdown": int(drain),
    }  # fmt: skip
    return uvicorn.Config(service, **options)


async def _serve(service: Service, listener: socket.socket, drain: float, told: Callable[[str], None]) -> None:
    try:
        await service.models.start()  # here, so that their errors are those of the caller
        address = listen(listener)
    except BaseException:
        await service.models.close()
        raise
    server = Server(config_of(service, drain), lambda: told(address), reloading(service.models.reload))
    await server.serve(sockets=[listener])


def reloading(reload: Callable[[], Awaitable[list[str]]]) -> Callable[[], None]:
    """Return a function that begins to load bundles again, and logs what comes of it."""
    tasks: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = asyncio.ensure_future(_reload(reload))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin


async def _reload(reload: Callable[[], Awaitable[list[str]]]) -> None:
    try:
        names = await reload()
    except TxportError as error:
        logger.error("not reloaded", extra={"fields": {"reason": str(error)}})
    except Exception:
        logger.exception("not reloaded")
    else:
        logger.info("reloaded", extra={"fields": {"models": names}})
