"""Many connections, those that can't be had, and callers that do not read, beside others."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import txport
from tests.cli.processes import ENVIRONMENT, MAIN
from tests.serving.service.served import PATIENCE, address_of, client, wait_for

resource = pytest.importorskip("resource", reason="limits of open files")
if not Path("/proc/self/fd").exists():
    pytest.skip("reads /proc", allow_module_level=True)
IDLE = 10_000
PATIENT = "import txport.serving.service.server as server; server.HEADER_SECONDS = 600.0"
WORD = {"model": "spell", "text": "chief"}


def connect(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=PATIENCE)


def files(process: subprocess.Popen[str]) -> int:
    """The number of open files of a process."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@contextlib.contextmanager
def serving(*arguments: object, hard: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve in a process that waits for headers, and may open `hard` files if it asks for them; yield its address."""
    command = [sys.executable, "-c", PATIENT + MAIN, "serve", *map(str, arguments), "--port", "0", "--threads", "1"]
    most = hard or resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1024), most))

    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=limit) as process:
        try:
            yield process, address_of(process)
        finally:
            process.terminate()


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many open files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 2500:
        pytest.skip(f"{IDLE} connections need `ulimit -Hn` of {IDLE + 2500}, here it is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_callers_are_answered_beside_ten_thousand_idle_connections(
    many_files: None, bundles: dict[str, Path], models: dict[str, txport.Model]
) -> None:
    """Half of them within the headers of a request; when they go away, nothing stays open."""
    wanted = models["spell"].generate("chief")[0].output
    with serving(bundles["spell"]) as (process, url), client(url) as http:
        http.post("/translate", json=WORD)
        before = files(process)
        with contextlib.ExitStack() as idle:
            for at in range(IDLE):
                idle.enter_context(connect(url)).sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" if at % 2 else b"")
                if at % 1000 == 999:
                    answer = http.post("/translate", json=WORD)
                    assert answer.json()["translations"][0]["output"] == wanted
            wait_for(lambda: files(process) >= before + IDLE)
        wait_for(lambda: files(process) <= before)
        assert http.post("/translate", json=WORD).status_code == 200


def test_connections_beyond_the_open_files_get_503_and_others_go_on(bundles: dict[str, Path]) -> None:
    """A process that can't open a file accepts nothing, and asyncio then logs as many errors as the backlog is long."""
    few = 400
    with serving(bundles["spell"], hard=few) as (process, url):
        with client(url) as http, contextlib.ExitStack() as idle:
            http.post("/translate", json=WORD)
            callers = [idle.enter_context(connect(url)) for _ in range(few)]
            answer = callers[-1].recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in answer
            assert http.post("/translate", json=WORD).status_code == 200  # on a connection from before
        wait_for(lambda: files(process) < few // 2)
        with client(url) as http:
            assert http.post("/translate", json=WORD).status_code == 200
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.communicate()[1].splitlines()]
    assert {each["level"] for each in lines} == {"info"}


def test_a_caller_that_does_not_read_holds_up_neither_others_nor_the_end(bundles: dict[str, Path]) -> None:
    body = json.dumps(
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1000], "data": ["a b c d e"] * 1000}]}
    )
    head = f"POST /v2/models/embed/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with serving(bundles["embed"], "--drain", 1) as (process, url), client(url) as http, socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect((urlsplit(url).hostname, urlsplit(url).port))
        caller.sendall((head + body).encode())
        assert caller.recv(9) == b"HTTP/1.1 "
        assert http.post("/v1/embeddings", json={"model": "embed", "input": "a"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
