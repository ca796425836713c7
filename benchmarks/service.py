"""Callers over HTTP compared with callers of the live engine, and with bulk, on words of a pronunciation dictionary.

    python -m benchmarks.service BUNDLE DICTIONARY [--callers 64] [--words 3000] [--workers 1 --workers 2]

Rounds alternate. Prints one JSON object: medians of requests a second, of the processor time of a request in ms, the
client's own apart, and of the time of an answer; and the number of words for which the results differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from txport.api import model as api

Figures = dict[str, list[float]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dictionary", type=click.Path(path_type=Path))
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option("--words", type=click.IntRange(1), default=3000, show_default=True, help="Drawn with a fixed seed.")
@click.option("--workers", type=click.IntRange(1), multiple=True, default=(1,), show_default=True, help="Of a service.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(bundle: Path, dictionary: Path, callers: int, words: int, workers: tuple[int, ...], rounds: int) -> None:
    """Time BUNDLE on the first words of the lines of DICTIONARY, in one thread of each process."""
    texts = words_of(dictionary, words)
    model = api.load(bundle, threads=1)
    figures: dict[str, Figures] = {}
    outputs: dict[str, list[str]] = {}
    ways: dict[str, Callable[[Figures], list[str]]] = {
        "bulk": lambda found: _bulk(model, texts, callers, found),
        "engine": lambda found: asyncio.run(_engine(model, texts, callers, found)),
    }
    with contextlib.ExitStack() as services:
        for count in workers:
            port, process = services.enter_context(started(bundle, callers, "--workers", str(count)))
            ways[f"http, workers {count}"] = functools.partial(_service, port, process, texts, callers)
        for _ in range(1 + rounds):  # the first warms up
            for name, run in ways.items():
                outputs[name] = run(figures.setdefault(name, {}))
    medians = {name: {key: round(float(np.median(each[1:])), 3) for key, each in found.items()}
               for name, found in figures.items()}  # fmt: skip
    differing = sum(len(set(each)) > 1 for each in zip(*outputs.values(), strict=True))
    click.echo(json.dumps({**medians, "words that differ": differing}))


def words_of(dictionary: Path, count: int) -> list[str]:
    """Return the first words of lines of a file, drawn with a fixed seed."""
    every = sorted({line.split()[0] for line in dictionary.read_text(encoding="utf-8").splitlines() if line.strip()})
    found: list[str] = np.random.default_rng(0).permutation(every)[:count].tolist()
    return found


@contextlib.contextmanager
def started(bundle: Path, slots: int, *more: str) -> Iterator[tuple[int, int]]:
    """Serve a bundle as `model`, in one thread; yield the port and the number of the process."""
    command = [sys.executable, "-c", "from txport.cli import main; main()", "serve", f"model={bundle}"]
    options = ["--port", "0", "--threads", "1", "--slots", str(slots), *more]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(next(found[1] for line in server.stderr if (found := re.search(r" at http://\S+:(\d+)$", line))))
        threading.Thread(target=server.stderr.read, daemon=True).start()  # its log
        yield port, server.pid
    finally:
        server.terminate()
        server.wait()


async def ask(connection: Connection, text: str, **options: object) -> str:
    """Return what the service says for a text."""
    output: str = (await send(connection, text, **options))[1]["translations"][0]["output"]
    return output


async def send(connection: Connection, text: str, **options: object) -> tuple[int, Any]:
    """Return the status and the body of the answer for a text."""
    reader, writer = connection
    body = json.dumps({"model": "model", "text": text, **options}).encode()
    writer.write(f"{HEAD}{len(body)}\r\n\r\n".encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head)
    assert size is not None
    return int(head.split(b" ", 2)[1]), json.loads(await reader.readexactly(int(size[1])))


def _bulk(model: api.Model, texts: Sequence[str], callers: int, figures: Figures) -> list[str]:
    begin, processor = time.perf_counter(), time.process_time()
    found = [each.output for each in model.generate_iter(texts, continuous=True, batch_size=callers)]
    _add(figures, len(texts), time.perf_counter() - begin, time.process_time() - processor)
    return found


async def _engine(model: api.Model, texts: Sequence[str], callers: int, figures: Figures) -> list[str]:
    found: dict[int, str] = {}
    waiting = list(enumerate(texts))[::-1]
    begin, processor = time.perf_counter(), time.process_time()
    with model.engine(slots=callers) as engine:

        async def call() -> None:
            while waiting:
                at, text = waiting.pop()
                found[at] = (await engine.submit(text)).output

        await asyncio.gather(*(call() for _ in range(callers)))
    _add(figures, len(texts), time.perf_counter() - begin, time.process_time() - processor)
    return [found[at] for at in range(len(texts))]


def _service(port: int, process: int, texts: Sequence[str], callers: int, figures: Figures) -> list[str]:
    return asyncio.run(_http(port, process, texts, callers, figures))


async def _http(port: int, process: int, texts: Sequence[str], callers: int, figures: Figures) -> list[str]:
    found: dict[int, str] = {}
    seconds: list[float] = []
    waiting = list(enumerate(texts))[::-1]

    async def call() -> None:
        connection = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            at, text = waiting.pop()
            asked = time.perf_counter()
            found[at] = await ask(connection, text)
            seconds.append(time.perf_counter() - asked)
        connection[1].close()

    begin, processor, own = time.perf_counter(), _processor_time(process), time.process_time()
    await asyncio.gather(*(call() for _ in range(callers)))
    _add(figures, len(texts), time.perf_counter() - begin, _processor_time(process) - processor)
    figures.setdefault("client, ms", []).append(1000 * (time.process_time() - own) / len(texts))
    for name, share in (("answer, p50 ms", 50), ("answer, p99 ms", 99)):
        figures.setdefault(name, []).append(1000 * float(np.percentile(seconds, share)))
    return [found[at] for at in range(len(texts))]


def _add(figures: Figures, count: int, seconds: float, processor: float) -> None:
    figures.setdefault("requests a second", []).append(count / seconds)
    figures.setdefault("processor time, ms", []).append(1000 * processor / count)


def _processor_time(process: int) -> float:
    """Return the processor time of another process and its children in seconds (Linux)."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    stats = [Path(f"/proc/{each}/stat").read_text(encoding="ascii") for each in (process, *children)]
    values = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(each[11]) + int(each[12]) for each in values) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
