"""`txport serve --workers`: processes that share a port, are replaced when they die, and load bundles again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import txport
from tests.cli.processes import ENVIRONMENT, assert_one_line, run, start
from tests.serving.service.served import PATIENCE, client, metric, wait_for
from tests.serving.service.test_life import BODY, KEY, asking
from txport import errors
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.workers import FAILED, PAUSE
from txport.system.cores import usable_cores

CALLERS = 4


class Serving:
    """The command with two workers, its address, and its log so far."""

    def __init__(self, *arguments: object, path: object = "") -> None:
        """`path` is of more modules."""
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(path), ENVIRONMENT.get("PYTHONPATH", "")])}
        self.process = start("serve", *arguments, "--port", "0", "--workers", "2", env=environment)
        self.url = ""
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        wait_for(lambda: self.url or self.process.poll() is not None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.fullmatch(r"serving .* at (http://\S+)\n", line):
                self.url = found[1]
            else:
                self.log.append(json.loads(line))

    def told(self, message: str) -> list[dict[str, Any]]:
        return [each for each in self.log if each["message"] == message]

    def processes(self, message: str) -> list[int]:
        """The processes that logged a message."""
        return [each["process"] for each in self.told(message)]

    def end(self) -> None:
        self.process.terminate()
        self._reader.join()  # all processes have ended
        with self.process:
            pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    with contextlib.ExitStack() as stack:

        def begin(*arguments: object, **options: object) -> Serving:
            serving = Serving(*arguments, **options)
            stack.callback(serving.end)
            return serving

        yield begin


def asked(url: str, wanted: str, is_done: Callable[[], bool], **options: Any) -> tuple[int, int]:
    """Ask for a word until something is done; return the answers, all of them right, and the connections that broke."""
    body = {"model": "spell", "text": "chief"}

    async def ask() -> tuple[int, int]:
        answers = broken = 0
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, **options) as http:
            while not is_done():
                try:
                    answer = await http.post("/translate", json=body)
                except httpx.TransportError:
                    broken += 1
                    continue
                assert answer.status_code == 200, answer.text
                assert answer.json()["translations"][0]["output"] == wanted
                answers += 1
        return answers, broken

    async def ask_all() -> list[tuple[int, int]]:
        return await asyncio.gather(*(ask() for _ in range(CALLERS)))

    answers, broken = zip(*asyncio.run(ask_all()), strict=True)
    return sum(answers), sum(broken)


def refuses(url: str) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((urlsplit(url).hostname, urlsplit(url).port)) != 0


def test_a_worker_that_is_killed_fails_only_its_requests(
    serve: Callable[..., Serving], bundles: dict[str, Path], models: dict[str, txport.Model]
) -> None:
    """Another one replaces it, and what it counted is not lost. Without a supervisor, workers end."""
    serving = serve(bundles["spell"])
    first, second = serving.processes("loaded")
    wanted = models["spell"].generate("chief")[0].output

    def is_done() -> bool:
        """Kill a worker when both have answered; done when the one that replaces it has."""
        answering = set(serving.processes("request"))
        if answering == {first, second} and not serving.told("another process replaces a worker"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(second, signal.SIGKILL)
        return bool(answering - {first, second})

    answers, broken = asked(serving.url, wanted, is_done, headers={"Connection": "close"})
    assert broken <= CALLERS
    (death,) = serving.told("another process replaces a worker")
    assert (death["worker"], death["code"]) == (second, -signal.SIGKILL)
    with client(serving.url) as http:
        assert answers <= metric(http, "txport:request_success_total") <= answers + broken
        assert metric(http, "txport:workers") == 2
        wait_for(lambda: metric(http, "txport:num_requests_running") == 0)
    serving.process.kill()
    wait_for(lambda: refuses(serving.url))


FAULT = """
import os
from txport.serving.worker import Worker

def admit(self, own=Worker._admit):
    if os.path.exists({path!r}):
        os.unlink({path!r})
        raise SystemExit("a planted fault")
    own(self)

Worker._admit = admit
"""  # of the first engine that has work while a file is there


def test_a_worker_whose_engine_has_failed_is_replaced(
    serve: Callable[..., Serving], bundles: dict[str, Path], models: dict[str, txport.Model], tmp_path: Path
) -> None:
    """Its requests get the error. Another one follows after a pause, since it may fail, too."""
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(path=str(tmp_path / "fault")), encoding="utf-8")
    (tmp_path / "fault").touch()
    serving = serve(bundles["spell"], path=tmp_path)
    before = serving.processes("loaded")
    with client(serving.url) as http:
        answer = http.post("/translate", json={"model": "spell", "text": "chief"})
    assert (answer.status_code, "the engine has failed" in answer.text) == (503, True)
    wait_for(lambda: len(serving.processes("loaded")) == 3)
    (death,) = serving.told("another process replaces a worker")
    assert (death["worker"] in before, death["code"]) == (True, FAILED)
    ended, loaded = (datetime.fromisoformat(each["time"]) for each in (death, serving.told("loaded")[-1]))
    assert (loaded - ended).total_seconds() >= PAUSE
    wanted = models["spell"].generate("chief")[0].output
    answering = {*before, *serving.processes("loaded")} - {death["worker"]}
    url, headers = serving.url, {"Connection": "close"}
    assert asked(url, wanted, lambda: answering <= set(serving.processes("request")), headers=headers)[1] == 0


def test_every_worker_loads_a_new_bundle_without_a_dropped_request(
    serve: Callable[..., Serving], bundles: dict[str, Path], models: dict[str, txport.Model], tmp_path: Path
) -> None:
    """A damaged bundle is refused by all, also by a worker that replaces another one."""
    path = tmp_path / "spell"
    shutil.copytree(bundles["spell"], path)
    (tmp_path / "keys.txt").write_text(KEY, encoding="utf-8")
    headers = {"Authorization": f"Bearer {KEY}"}
    serving = serve(path, "--api-key-file", tmp_path / "keys.txt")
    wanted = models["spell"].generate("chief")[0].output
    results: list[httpx.Response] = []

    def reload() -> None:
        with client(serving.url, headers=headers) as http:
            results.extend(http.post("/admin/reload", json=body) for body in ({}, {"model": "other"}))
            serving.process.send_signal(signal.SIGHUP)
            wait_for(lambda: serving.told("reloaded"))
            with next(path.glob("onnx/*.onnx")).open("ab") as file:
                file.write(b"x")
            results.append(http.post("/admin/reload", json={"model": "spell"}))

    reloading = threading.Thread(target=reload)
    reloading.start()
    answers, broken = asked(serving.url, wanted, lambda: not reloading.is_alive(), headers=headers)
    assert answers >= CALLERS
    assert broken == 0
    assert [each.status_code for each in results] == [200, 404, 409]
    assert results[0].json() == {"reloaded": ["spell"]}
    assert "onnx/" in results[2].json()["error"]["message"]
    loaded = serving.processes("loaded")
    assert [loaded.count(each) for each in set(loaded)] == [3, 3]

    os.kill(loaded[0], signal.SIGKILL)
    wait_for(
        lambda: any("onnx/" in each.get("reason", "") for each in serving.told("another process replaces a worker"))
    )
    with client(serving.url, headers=headers) as http:
        assert http.post("/translate", json={"model": "spell", "text": "chief"}).status_code == 200


def test_a_signal_ends_all_when_their_requests_have_ended(
    serve: Callable[..., Serving], bundles: dict[str, Path]
) -> None:
    serving = serve(bundles["chat"])
    callers = [asking(serving.url, BODY | {"stream": True}) for _ in range(CALLERS)]
    begun = [caller.recv(1 << 16) for caller in callers]
    serving.process.send_signal(signal.SIGINT)
    for caller, begin in zip(callers, begun, strict=True):
        content = begin + b"".join(iter(lambda caller=caller: caller.recv(1 << 16), b""))  # type: ignore[misc]
        assert b"data: [DONE]" in content
        caller.close()
    assert serving.process.wait(PATIENCE) == 0
    assert [each["status"] for each in serving.told("request")] == [200] * CALLERS
    assert {each["level"] for each in serving.log} == {"info"}


def test_workers_that_can_not_start_say_why_once(tmp_path: Path) -> None:
    done = run("serve", tmp_path / "none", "--port", 0, "--workers", 2)
    assert_one_line(done, f"there is no bundle {tmp_path / 'none'}", 2)


def test_workers_share_the_cores(bundles: dict[str, Path], call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Any, int]] = []
    monkeypatch.setattr(
        "txport.serving.service.workers.supervise", lambda make, count, **_: begun.append((make, count))
    )
    for more in ((), ("--threads", 1)):
        assert call("serve", bundles["spell"], "--workers", 2, *more)[0] == 0
    (first, count), (second, _) = begun
    assert count == 2
    assert first.args[0]["spell"].threads == max(1, usable_cores() // 2)
    assert second.args[0]["spell"].threads == 1


def test_errors_pass_between_processes() -> None:
    """With their types and messages, and the status of one that is about a request."""
    ours, theirs = multiprocessing.Pipe()
    every = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    for each in every:
        ours.send(each("a message"))
        copy = theirs.recv()
        assert (type(copy), str(copy)) == (each, "a message")
    ours.send(InvalidRequestError("there is no model", status=404))
    assert theirs.recv().status == 404
