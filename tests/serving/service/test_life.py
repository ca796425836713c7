"""The life of a service: callers that go away, full queues, slow callers, new bundles, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

import txport
from tests.cli.processes import assert_one_line, run, start, without
from tests.serving.service.served import PATIENCE, address_of, client, metric, running, wait_for
from tests.serving.service.test_encoding import recording
from txport.serving.service.asgi import Service, app
from txport.serving.service.models import Served, Sizes, Source
from txport.serving.service.server import bound, config_of, serve

KEY = "a-key-of-some-length"
BODY = {"model": "chat", "prompt": "Hello", "max_tokens": 300, "eos_token_id": 7}


class Gate:
    """Steps of a model's runtime wait until it is opened, or lets some pass."""

    def __init__(self, model: txport.Model) -> None:
        self.steps = threading.Semaphore(0)
        self.reached = threading.Event()
        runtime: Any = model.runtime
        step = runtime.step

        def gated(*arguments: Any, **options: Any) -> Any:
            self.reached.set()
            assert self.steps.acquire(timeout=PATIENCE)
            return step(*arguments, **options)

        runtime.step = gated

    def open(self) -> None:
        self.steps.release(1 << 20)


@pytest.fixture
def hearing(bundles: dict[str, Path]) -> Iterator[tuple[txport.Model, Gate]]:
    """A model of speech whose steps wait."""
    model = txport.load(bundles["hear"], threads=1)
    gate = Gate(model)
    yield model, gate
    gate.open()


@pytest.fixture
def gated(bundles: dict[str, Path]) -> Iterator[tuple[txport.Model, Gate]]:
    """A model of its own whose steps wait."""
    model = txport.load(bundles["chat"], threads=1)
    gate = Gate(model)
    yield model, gate
    gate.open()


def test_a_stream_tells_tokens_before_the_last_one_is_there(
    gated: tuple[txport.Model, Gate], models: dict[str, txport.Model]
) -> None:
    model, gate = gated
    outputs = [models["chat"].generate("Hello", max_new_tokens=count)[0].output for count in range(1, 30)]
    whole = outputs[-1]
    few = next(
        at for at, text in enumerate(outputs, 1) if text and whole.startswith(text)
    )  # it ends in no part of a letter
    gate.steps.release(few + 1)
    body = BODY | {"max_tokens": 29, "stream": True, "eos_token_id": None}
    with (
        running(app({"chat": model})) as url,
        client(url) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"]
        gate.open()
        rest = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in list(lines)[:-1]]
    assert "".join([first, *rest]) == whole
    assert first in outputs[: few + 1]


def asking(url: str, body: Any) -> socket.socket:
    """Send a request for a completion, and return its connection."""
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    caller = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    caller.sendall(f"{head}{len(content)}\r\n\r\n".encode() + content)
    return caller


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_goes_away_cancels_its_request(
    stream: bool, is_half: bool, gated: tuple[txport.Model, Gate]
) -> None:
    """Or that closes its half of the connection."""
    model, gate = gated
    with running(app({"chat": model})) as url, client(url) as http:
        with asking(url, BODY | {"stream": stream}) as caller:
            wait_for(lambda: metric(http, "txport:num_requests_running") == 1)
            assert gate.reached.wait(PATIENCE)
            if is_half:
                caller.shutdown(socket.SHUT_WR)
                assert caller.recv(1) == b""
        wait_for(lambda: metric(http, "txport:request_cancelled_total", model_name="chat") == 1)
        gate.open()
        wait_for(lambda: metric(http, "txport:num_requests_running") == 0)
        assert metric(http, "txport:generation_tokens_total") == 0
        assert http.post("/v1/completions", json=BODY | {"max_tokens": 2}).status_code == 200


def test_a_recording_ends_when_its_caller_goes_away(hearing: tuple[txport.Model, Gate]) -> None:
    model, gate = hearing
    service = app({"hear": model})
    with running(service) as url, client(url) as http:
        files = {"file": ("a.wav", recording())}
        request = http.build_request("POST", f"{url}/v1/audio/transcriptions", data={"model": "hear"}, files=files)
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as caller:
            caller.sendall(f"POST /v1/audio/transcriptions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
            assert gate.reached.wait(PATIENCE)
        wait_for(lambda: metric(http, "txport:request_cancelled_total", model_name="hear") == 1)
        gate.open()
        served = service.models.get("hear")
        assert served.recordings is not None
        assert served.engine is not None
        wait_for(lambda: served.recordings._count == 0)  # type: ignore[union-attr]
        assert (served.engine.stats().cancelled, served.engine.stats().finished) == (1, 0)


def test_a_recording_that_runs_is_cut_after_the_drain(hearing: tuple[txport.Model, Gate]) -> None:
    """And its caller is told so."""
    model, gate = hearing
    answers: list[httpx.Response] = []

    def ask(url: str) -> None:
        files = {"file": ("a.wav", recording())}
        with client(url) as http:
            answers.append(http.post("/v1/audio/transcriptions", data={"model": "hear"}, files=files))
        gate.open()

    service = app({"hear": model})
    with running(service, drain=1) as url:
        caller = threading.Thread(target=ask, args=(url,))
        caller.start()
        assert gate.reached.wait(PATIENCE)
        engine = service.models.get("hear").engine
    caller.join()
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["message"] == "the service ends; send the request again"
    assert engine is not None
    assert engine.stats().finished == 0


def test_a_model_that_is_closed_cancels_its_recordings(hearing: tuple[txport.Model, Gate]) -> None:
    model, gate = hearing
    served = Served("hear", model, Sizes(slots=1, queue=1, budget=1, audio=1 << 30))
    served.start()
    assert served.recordings is not None
    asked = [served.recordings.submit(recording(), {}) for _ in range(2)]
    assert gate.reached.wait(PATIENCE)
    threading.Timer(0.1, gate.open).start()
    served.close()
    for each in asked:
        with pytest.raises(CancelledError):
            each.future.result(PATIENCE)


def test_an_engine_that_has_failed_is_not_ready(models: dict[str, txport.Model]) -> None:
    """And callers are not told of the machine."""
    service = app({"chat": models["chat"]})
    with running(service) as url, client(url) as http:
        assert http.get("/ready").status_code == 200
        engine: Any = service.models.get("chat").engine

        def die() -> None:
            raise SystemExit("a fault of ours")

        engine._worker._admit = die
        for _ in range(2):
            answer = http.post("/v1/completions", json=BODY)
            told = answer.json()["error"]["message"]
            assert (answer.status_code, told) == (503, "the engine has failed; the log has the reason")
        for path in ("/ready", "/v2/health/ready", "/v2/models/chat/ready"):
            assert (http.get(path).status_code, http.get(path).json()["ready"]) == (503, False)


@pytest.mark.parametrize("prompt", [["a", "b"], "a" * 300])
def test_others_are_answered_while_prompts_are_read(
    prompt: Any, gated: tuple[txport.Model, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is read after its caller went away is cancelled."""
    model, gate = gated
    service = app({"chat": model})
    with running(service) as url, client(url) as http:
        engine: Any = service.models.get("chat").engine
        submit, begun, may_go_on = engine.submit, threading.Event(), threading.Event()

        def slow(**request: Any) -> Any:
            begun.set()
            assert may_go_on.wait(PATIENCE)
            return submit(**request)

        monkeypatch.setattr(engine, "submit", slow)
        with asking(url, BODY | {"prompt": prompt, "max_tokens": 2}):
            assert begun.wait(PATIENCE)
            assert http.get("/health").status_code == 200
        wait_for(lambda: metric(http, "txport:request_cancelled_total", model_name="chat") == 1)
        may_go_on.set()
        wait_for(lambda: engine.stats().cancelled == 1)
        gate.open()


def test_a_full_queue_is_told_with_the_time_to_wait(gated: tuple[txport.Model, Gate]) -> None:
    model, gate = gated
    service = app({"chat": model}, slots=1, queue=2)
    with running(service) as url:

        async def ask() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
                first = [asyncio.create_task(http.post("/v1/completions", json=BODY | {"max_tokens": 2}))]
                await asyncio.to_thread(gate.reached.wait, PATIENCE)
                first += [
                    asyncio.create_task(http.post("/v1/completions", json=BODY | {"max_tokens": 2})) for _ in "ab"
                ]
                while sum(load.waiting for load in service.models.loads()) < 2:
                    await asyncio.sleep(0.01)
                refused = await http.post("/v1/completions", json=BODY)
                gate.open()
                return [refused, *await asyncio.gather(*first)]

        refused, *others = asyncio.run(ask())
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert [each.status_code for each in others] == [200] * 3


def asked_at_once(service: Service, *rounds: list[dict[str, object]]) -> list[list[tuple[int, bool]]]:
    """Serve in this thread, and send the bodies of a round before it reads; return the statuses of answers.

    And whether each has an id: what is refused when it is read has none.
    """

    async def ask(port: int, bodies: list[dict[str, object]]) -> list[tuple[int, bool]]:
        with contextlib.ExitStack() as stack:
            callers = [stack.enter_context(asking(f"http://127.0.0.1:{port}", body)) for body in bodies]
            for caller in callers:
                caller.setblocking(False)
            loop = asyncio.get_running_loop()
            answers = await asyncio.gather(*(loop.sock_recv(caller, 4096) for caller in callers))
        return [(int(each.split()[1]), b"x-request-id" in each) for each in answers]

    async def run() -> list[list[tuple[int, bool]]]:
        server = uvicorn.Server(config_of(service, PATIENCE))
        with bound("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            found = [await ask(listener.getsockname()[1], bodies) for bodies in rounds]
            server.should_exit = True
            await serving
        return found

    return asyncio.run(run())


def test_of_requests_that_are_read_at_once_those_beyond_the_room_are_refused(models: dict[str, txport.Model]) -> None:
    """Though none is submitted by then; a request that is wrong gives its place back."""
    service = app({"chat": models["chat"]}, slots=1, queue=3)
    good: dict[str, object] = BODY | {"max_tokens": 2}
    statuses = asked_at_once(service, [good] * 10, [good | {"n": 0}] * 4, [good] * 4)
    assert [sorted(each) for each in statuses] == [
        [(200, True)] * 4 + [(429, False)] * 6, [(400, True)] * 4, [(200, True)] * 4,
    ]  # fmt: skip
    assert service.models.entering == 0


def test_requests_that_are_read_at_once_do_not_take_the_room_of_another_model(
    models: dict[str, txport.Model], bundles: dict[str, Path]
) -> None:
    service = app({"chat": models["chat"], "other": txport.load(bundles["chat"], threads=1)}, slots=1, queue=0)
    good: dict[str, object] = BODY | {"max_tokens": 2}
    assert asked_at_once(service, [good, good | {"model": "other"}]) == [[(200, True)] * 2]


def test_a_refusal_costs_neither_a_body_nor_a_connection(gated: tuple[txport.Model, Gate]) -> None:
    """Whether the body has come or not; what is no request to a model is answered meanwhile."""
    model, gate = gated
    service = app({"chat": model}, slots=1, queue=0)
    with running(service) as url, asking(url, BODY | {"max_tokens": 2}) as first, client(url) as http:
        assert gate.reached.wait(PATIENCE)
        host = (urlsplit(url).hostname, urlsplit(url).port)
        with socket.create_connection(host, timeout=PATIENCE) as caller, caller.makefile("rb") as answers:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise the system joins parts

            def answer(*parts: bytes, request_id: bytes | None = None) -> int:
                for part in parts:
                    caller.sendall(part)
                    assert http.get("/health").status_code == 200  # the part has been read
                status = int(answers.readline().split()[1])
                headers = dict(line.lower().rstrip().split(b": ") for line in iter(answers.readline, b"\r\n"))
                assert status == 200 or (status, int(headers[b"retry-after"])) == (429, 1)
                assert headers.get(b"x-request-id") == request_id or status == 200
                assert b"queue_full" in (body := answers.read(int(headers[b"content-length"]))) or status == 200, body
                return status

            body = json.dumps(BODY | {"max_tokens": 2}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
            head += b"Content-Type: application/json\r\nX-Request-Id: abc-1\r\n"
            assert answer(head + b"\r\n" + body) == 429
            assert answer(head + b"\r\n", body[:9], body[9:]) == 429
            assert answer(head, b"\r\n", body, request_id=b"abc-1") == 429  # the head in parts, which the parser reads
            assert answer(head[:20], head[20:] + b"\r\n" + body, request_id=b"abc-1") == 429
            assert answer(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") == 200
            assert metric(http, "txport:request_failure_total", code="queue_full") == 4
            engine: Any = service.models.get("chat").engine
            assert engine.stats().refused == 0
            gate.open()
            assert first.recv(9) == b"HTTP/1.1 "
            wait_for(lambda: not engine.stats().running)
            assert answer(head + b"\r\n" + body) == 200


def test_a_body_that_is_late_takes_no_room(models: dict[str, txport.Model]) -> None:
    with running(app({"chat": models["chat"]}, slots=1, queue=0)) as url, client(url) as http:
        host = (urlsplit(url).hostname, urlsplit(url).port)
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        with socket.create_connection(host, timeout=PATIENCE) as caller:
            caller.sendall(head)
            assert http.get("/health").status_code == 200  # it has been read
            assert http.post("/v1/completions", json=BODY | {"max_tokens": 2}).status_code == 200


def test_a_request_enters_once_its_body_is_there(
    models: dict[str, txport.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes with the head or in parts, and whether the connection stays open or may become another."""
    service = app({"chat": models["chat"]})
    entered: list[object] = []
    monkeypatch.setattr(service.models, "enter", entered.append)
    with running(service) as url:
        host = (urlsplit(url).hostname, urlsplit(url).port)
        body = json.dumps(BODY | {"max_tokens": 2}).encode()
        for number, more in enumerate((b"", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n"), 1):
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more
            head += f"Content-Length: {len(body)}\r\n\r\n".encode()
            for parts in ([head + body], [head, body], [head[:20], head[20:] + body[:9], body[9:]]):
                with socket.create_connection(host, timeout=PATIENCE) as caller:
                    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for part in parts:
                        caller.sendall(part)
                        time.sleep(0.05)
                    assert caller.recv(12) == b"HTTP/1.1 200"
            assert len(entered) == 3 * number


def test_a_slow_caller_gets_408(models: dict[str, txport.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """For a body, and for headers, that do not arrive."""
    monkeypatch.setattr("txport.serving.service.server.HEADER_SECONDS", 0.2)
    with running(app({"spell": models["spell"]}, body_seconds=0.2)) as url:
        begins = ("POST /translate HTTP/1.1\r\nHost: x\r\n", "GET / HTTP/1.1\r\nHost", "")
        rests = ("Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{", "", "")
        for begin, rest in zip(begins, rests, strict=True):
            with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=PATIENCE) as caller:
                caller.sendall((begin + rest).encode())
                answer = b"".join(iter(lambda caller=caller: caller.recv(4096), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"connection: close" in answer.lower()


def test_answers_are_not_held_back() -> None:
    """asyncio switches Nagle's algorithm off only on sockets that name their protocol."""
    with bound("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_connections_are_refused_until_models_are_loaded(
    models: dict[str, txport.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a port that another took meanwhile is told."""
    service = app({"spell": models["spell"]})
    listeners: list[socket.socket] = []

    def bind(host: str, port: int) -> socket.socket:
        listeners.append(bound(host, port))
        return listeners[0]

    async def load() -> None:
        address = listeners[0].getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listeners.append(socket.create_server(address))

    monkeypatch.setattr("txport.serving.service.server.bound", bind)
    monkeypatch.setattr(service.models, "start", load)
    with pytest.raises(txport.TxportError, match=r"can't listen on 127.0.0.1 port \d+: Address already in use"):
        serve(service, host="127.0.0.1", port=0, drain=0, told=pytest.fail)
    listeners[1].close()


def test_headers_without_end_are_refused(url: str) -> None:
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=PATIENCE) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (1 << 17))
        assert caller.recv(64).startswith(b"HTTP/1.1 400 ")


def test_ids_of_requests_are_echoed_or_made(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    assert http.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for strange in ("a b", "x" * 200, '"'):
        assert re.fullmatch(
            "[0-9a-f]{32}", http.get("/health", headers={"X-Request-Id": strange}).headers["x-request-id"]
        )


def test_a_new_bundle_replaces_the_old_one_without_a_dropped_request(
    bundles: dict[str, Path], models: dict[str, txport.Model], tmp_path: Path
) -> None:
    """Callers ask all the time; a bundle that is damaged, or computes something else, is refused."""
    path = tmp_path / "spell"
    shutil.copytree(bundles["spell"], path)
    body = {"model": "spell", "text": "chief"}
    wanted = models["spell"].generate("chief")[0].output
    service = app({"spell": Source(str(path), threads=1)}, api_keys=[KEY])
    headers = {"Authorization": f"Bearer {KEY}"}
    with running(service) as url, client(url, headers=headers) as http:

        async def ask(done: asyncio.Event) -> int:
            count = 0
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, headers=headers) as own:
                while not done.is_set() or count < 3:
                    answer = await own.post("/translate", json=body)
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["translations"][0]["output"] == wanted
                    count += 1
            return count

        async def run() -> tuple[list[int], list[httpx.Response]]:
            done = asyncio.Event()
            callers = [asyncio.create_task(ask(done)) for _ in range(4)]
            answers = [await asyncio.to_thread(http.post, "/admin/reload") for _ in range(3)]
            for content in (b'{"model": "other"}', iter([b'{"model": "other"}'])):  # with and without its length
                kind = {"Content-Type": "application/json"}
                answers.append(await asyncio.to_thread(http.post, "/admin/reload", content=content, headers=kind))
            with next(path.glob("onnx/*.onnx")).open("ab") as file:
                file.write(b"x")
            answers.append(await asyncio.to_thread(http.post, "/admin/reload", json={"model": "spell"}))
            done.set()
            return await asyncio.gather(*callers), answers

        before = service.models.get("spell")
        counts, answers = asyncio.run(run())
        after = service.models.get("spell")
    assert min(counts) >= 3
    assert [each.status_code for each in answers] == [200, 200, 200, 404, 404, 409]
    assert answers[0].json() == {"reloaded": ["spell"]}
    assert "onnx/" in answers[-1].json()["error"]["message"]
    assert after is not before
    with pytest.raises(txport.TxportError, match="this model is closed"):
        _ = before.model.runtime


def serving(*arguments: object) -> tuple[subprocess.Popen[str], str]:
    """Start the command; return its process and its address."""
    process = start("serve", *arguments, "--port", "0", "--threads", "1")
    return process, address_of(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_its_requests_have_ended(number: int, bundles: dict[str, Path]) -> None:
    """And its log is lines of JSON."""
    process, url = serving(bundles["chat"])
    with client(url) as http, http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        process.send_signal(number)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    told = [json.loads(line) for line in process.communicate()[1].splitlines()]
    assert process.returncode == 0
    (request,) = [each for each in told if each["message"] == "request"]
    assert (request["status"], request["model"], request["generation_tokens"]) == (200, "chat", 300)


def test_a_hangup_loads_bundles_again_and_curl_can_ask(bundles: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"# ours\n\n{KEY}\n", encoding="utf-8")
    process, url = serving(f"words={bundles['spell']}", "--api-key-file", keys)
    try:
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        told = next(found for line in process.stderr if "models" in (found := json.loads(line)))
        assert (told["message"], told["models"]) == ("reloaded", ["words"])
        if curl := shutil.which("curl"):
            how = ["-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {KEY}", "--noproxy", "*"]
            body = json.dumps({"model": "words", "text": "bad"})
            done = subprocess.run([curl, "-s", f"{url}/translate", *how, "-d", body], capture_output=True, check=True)
            wanted = txport.load(bundles["spell"], threads=1).generate("bad")[0]
            assert json.loads(done.stdout)["translations"][0]["output"] == wanted.output
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0


def test_a_service_that_can_not_start_says_why_in_one_line(bundles: dict[str, Path], call: Any, tmp_path: Path) -> None:
    spell = bundles["spell"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert call("serve", spell, "--port", port)[0] == 3
    code, _, err = call("serve", spell, "--host", "a" * 100, "--port", 0)
    assert (code, err.splitlines()[-1][:30]) == (3, "txport: can't listen on aaaaaa")
    (tmp_path / "keys.txt").write_text("short\n", encoding="utf-8")
    for arguments, message in (
        ((tmp_path / "none",), f"there is no bundle {tmp_path / 'none'}"),
        ((spell, f"spell={spell}"), "each model needs a name of its own"),
        ((spell, "--api-key-file", tmp_path / "keys.txt"), "must have at least 16 visible ASCII characters"),
        ((spell, "--api-key-file", tmp_path / "no.txt"), "the API keys can't be read"),
    ):
        code, _, err = call("serve", *arguments, "--port", 0)
        assert code == 2
        assert message in err.splitlines()[-1]


def test_without_the_extra_the_error_names_what_to_install(bundles: dict[str, Path]) -> None:
    done = run("serve", bundles["spell"], before=without("starlette", "torch"))
    assert_one_line(done, "a service needs starlette, which is not installed: pip install 'txport[serve]'", 3)


def test_a_portable_bundle_that_generates_is_refused(bundle: Any) -> None:
    with pytest.raises(txport.TxportError, match="a live engine needs a cpu or cuda bundle"):
        asyncio.run(app({"toy": txport.load(bundle.path)}).models.start())
