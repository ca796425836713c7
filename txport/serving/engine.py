"""A live engine: requests are submitted at any time, from threads or an event loop, and share the steps of one model.

with model.engine(slots=32) as engine:
    handle = engine.submit("hello", beams=4)
    print(handle.result().output)
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, Unpack

from txport.api.generated import Generated, Prepared
from txport.api.transcription import Audio, Requests, Transcribing, Transcript
from txport.errors import QueueFullError, UnsupportedError
from txport.runtimes.base import ContinuousRuntime
from txport.search.options import Found, Searching, SearchOptions
from txport.serving.tickets import Cancellation, Stats, Ticket, Times
from txport.serving.worker import Worker
from txport.system.numbers import number, whole
from txport.text.base import Unknown
from txport.text.chat import chat_line

if TYPE_CHECKING:
    from txport.api.model import Model

SLOTS, QUEUE, BUDGET = 32, 1024, 512  # by default
MOST = 1 << 20  # slots, requests that wait, and tokens of a budget
MAX_PRIORITY = 1 << 20
KEPT = 128  # combinations of options that are checked once


class Handle:
    """A request of an engine. `await handle` and `async for text in handle` are for event loops.

    `times` are those of the request; `source_tokens` is the number of tokens of its source.
    """

    def __init__(self, ticket: Ticket, prepared: Prepared) -> None:
        self._ticket = ticket
        self._prepared = prepared
        self._read: Generated | None = None

    @property
    def times(self) -> Times:
        """When the request was submitted, admitted, had its first token, and ended."""
        return self._ticket.times

    @property
    def source_tokens(self) -> int:
        """The number of tokens of the source."""
        return len(self._prepared.source)

    def done(self) -> bool:
        """Return True if the request has a result or an error, or was cancelled."""
        return self._ticket.future.done()

    def cancel(self) -> bool:
        """Give the request up; return False if it has ended before.

        Its slot becomes free with the next step, and `result` raises `concurrent.futures.CancelledError`.
        """
        return not self.done() and self._ticket.future.cancel()

    def result(self, timeout: float | None = None) -> Generated:
        """Wait up to `timeout` seconds for the result; raise the request's own error, or `TimeoutError`."""
        return self._result(self._ticket.future.result(timeout))

    def stream(self) -> Iterator[str]:
        """Yield the output each time it grows, and finally the complete output, as `Model.stream`.

        A slow reader misses intermediate outputs. Closing the iterator does not cancel the request.
        """
        self._prepared.require_streamed()
        grown = threading.Event()
        return self._stream(grown)

    def _stream(self, grown: threading.Event) -> Iterator[str]:
        output = ""
        with Watched(self._ticket, grown.set):
            while not self.done():
                grown.wait()
                grown.clear()
                if (text := self._longer(output)) is not None:
                    output = text
                    yield text
        yield from self._last(output)

    def __await__(self) -> Generator[object, None, Generated]:
        """Wait for the result; if the waiting task is cancelled, so is the request."""
        return self._wait().__await__()

    async def _wait(self) -> Generated:
        import asyncio  # many modules, which is why it is imported in coroutines alone

        return self._result(await asyncio.wrap_future(self._ticket.future))

    def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the output as `stream` does; if the task is cancelled meanwhile, so is the request."""
        self._prepared.require_streamed()
        return self._stream_async()

    async def _stream_async(self) -> AsyncIterator[str]:
        import asyncio

        loop = asyncio.get_running_loop()
        grown = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(grown.set)

        output = ""
        with Watched(self._ticket, wake):
            while not self.done():
                try:
                    await grown.wait()
                except asyncio.CancelledError:
                    self.cancel()
                    raise
                grown.clear()
                if (text := self._longer(output)) is not None:
                    output = text
                    yield text
        for text in self._last(output):
            yield text

    def _result(self, found: list[Found]) -> Generated:
        if self._read is None:
            self._read = self._prepared.result(found)
        return self._read

    def _longer(self, output: str) -> str | None:
        """Return the certain text of a running request, if it continues the output."""
        if self.done():
            return None
        text = self._prepared.certain(self._ticket.tokens)
        return text if text != output and text.startswith(output) else None

    def _last(self, output: str) -> Iterator[str]:
        whole = self.result().output
        if whole != output or not whole:
            yield whole


class Watched:
    """Context manager: call `wake` when a request has more tokens, and when it ends."""

    def __init__(self, ticket: Ticket, wake: Callable[[], None]) -> None:
        self._ticket = ticket
        self._wake = wake

    def __enter__(self) -> None:
        self._ticket.watchers = (*self._ticket.watchers, self._wake)
        self._ticket.future.add_done_callback(lambda _: self._wake())
        if self._ticket.tokens:
            self._wake()

    def __exit__(self, *_: object) -> None:
        self._ticket.watchers = tuple(each for each in self._ticket.watchers if each != self._wake)


class Engine:
    """Runs requests to a generating model together, in one thread; `Model.engine` makes one.

    The result of a request is that of `Model.generate` for it alone, whatever else runs. `submit` may be called from
    any thread. A context manager: it ends when all requests have ended, and cancels them after an error.
    """

    def __init__(self, model: Model, *, slots: int, queue: int, budget: int) -> None:
        runtime = model._numbers
        model._options({}, [], self.submit)  # raises for a model that does not generate
        if not isinstance(runtime, ContinuousRuntime):
            raise UnsupportedError("a live engine needs a cpu or cuda bundle; use `txport export --target cpu`")
        self.model = model
        self._chosen = functools.lru_cache(KEPT, typed=True)(self._choose)
        self._worker = Worker(
            runtime,
            model.facts,
            whole("slots", slots, 1, MOST),
            whole("queue", queue, 0, MOST),
            whole("budget", budget, 1, MOST),
        )

    def submit(
        self,
        text: str | None = None,
        *,
        messages: str | Sequence[Mapping[str, object]] | None = None,
        ids: Sequence[int] | None = None,
        priority: int = 0,
        deadline: float | None = None,
        prefix: str = "",
        unknown: Unknown = "auto",
        special: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        template_options: Mapping[str, object] | None = None,
        continue_final_message: bool | None = None,
        **options: Unpack[Searching],
    ) -> Handle:
        """Add a request for one text, a chat, or the token ids of a source; return its handle at once.

        A request with a higher `priority` is admitted before others that have waited for less than one second more for
        each unit. It fails with `DeadlineError` if it has not ended `deadline` seconds after submission. The other
        options are those of `Model.generate_iter` and `Model.chat`.

        Raises the errors of these for invalid options and texts, `QueueFullError` if too many requests wait, and
        `EngineError` after `close`.
        """
        if sum(each is not None for each in (text, messages, ids)) != 1:
            raise UnsupportedError("give one of text, messages and ids")
        model, chosen = self._reading(source_language, target_language, options)
        if text is None and messages is not None:
            model = model.reading_chats(template_options, continue_final_message)
            text = chat_line(messages)
        if text is not None:
            prepared = model._prepare(text, chosen, prefix, unknown, special)
        else:
            source = model._with_room(model._checked(ids), chosen)
            prepared = model._prepared("", source, model._begin(prefix), chosen)
        return self._submit(prepared, priority, deadline)

    def transcribe(
        self,
        audio: Audio | Iterable[Audio],
        *,
        priority: int = 0,
        deadline: float | None = None,
        cancellation: Cancellation | None = None,
        **options: Unpack[Transcribing],
    ) -> list[Transcript]:
        """Transcribe audio as `Model.transcribe`, in the calling thread; its windows are requests of the engine.

        `priority` and `deadline` are those of `submit`; the deadline is that of each window. Raises `QueueFullError` if
        too many requests wait, the errors of `Model.transcribe`, and `concurrent.futures.CancelledError` once the
        `cancellation` is set, in the window that runs or after the audio is read.
        """
        priority, seconds = entering(priority, deadline)

        def find(requests: Requests, how: SearchOptions) -> list[list[Found]]:
            tickets = [Ticket(*request, how, self.model.facts, priority, seconds) for request in requests]
            if cancellation is not None:
                cancellation.watch(tickets)
            self._worker.submit(tickets)
            try:
                return [ticket.future.result() for ticket in tickets]
            finally:
                for ticket in tickets:
                    ticket.future.cancel()

        return list(self.model._transcribe(audio, find, **options))

    def _submit(self, prepared: Prepared, priority: int, deadline: float | None) -> Handle:
        priority, seconds = entering(priority, deadline)
        ticket = Ticket(prepared.source, prepared.prefix, prepared.options, self.model.facts, priority, seconds)
        if len(prepared.source):
            self._worker.submit([ticket])
        else:  # nothing of the text is known
            ticket.end([])
        return Handle(ticket, prepared)

    def _reading(
        self, source_language: str | None, target_language: str | None, options: Mapping[str, object]
    ) -> tuple[Model, SearchOptions]:
        """Return the model with languages set, and the checked options; equal ones are checked once."""
        try:
            return self._chosen(source_language, target_language, **{name: frozen(options[name]) for name in options})
        except TypeError:  # not hashable
            return self._choose(source_language, target_language, **options)

    def _choose(
        self, source_language: str | None, target_language: str | None, **options: object
    ) -> tuple[Model, SearchOptions]:
        model = self.model
        if source_language is not None or target_language is not None:
            model = model.between(source_language, target_language)
        return model, model._options(options, [], self.submit)

    @property
    def is_open(self) -> bool:
        """Whether the engine takes requests: it is not closed, and has not failed."""
        return self._worker.is_open

    def full(self, count: int = 1) -> QueueFullError | None:
        """Return the error of `count` more requests, or None if there is room for them."""
        return self._worker.full(count)

    def stats(self) -> Stats:
        """Return the statistics now."""
        return self._worker.stats

    def close(self, *, cancel: bool = False) -> None:
        """Take no more requests, and wait until the others have ended; with `cancel`, cancel them."""
        self._worker.close(cancel=cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)


def entering(priority: object, deadline: object) -> tuple[int, float | None]:
    """Return a priority and a deadline in seconds; raise `UnsupportedError` for others."""
    seconds = None if deadline is None else number("deadline", deadline)
    return whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY), seconds


def frozen(value: object) -> object:
    """Return a value with tuples in place of lists, so that it can be a key."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
