"""Models of each kind, their service on a real uvicorn, and clients."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

import txport
from tests.api.test_rank import IDS, SIZES, reranker
from tests.recorded import ANSWERS, WHISPER
from tests.seeded import bundle_of, saved
from tests.text.grown import grown
from tests.text.test_agreement import tokenizers
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.architectures.bert import BertConfig
from txport.serving.service.asgi import Service
from txport.serving.service.server import bound, config_of

TEXTS = ("bad", "chief", "a", "di'ed", "fed")
PATIENCE = 60  # seconds that a test waits for a state


def make_bundles(folder: Path, checkpoint: Path) -> dict[str, Path]:
    """A bundle of the cpu target for each kind of model."""
    size = tokenizers("llama-new")[0].size
    chatting = load_checkpoint(str(grown(folder / "chat-model", "llama", "llama-new", size)))
    scorer = reranker(folder / "rerank-model")
    encoder = saved(BertConfig(**SIZES, **IDS, head="hidden"), folder / "embed-model")
    (folder / "embed-model" / "tokenizer.json").write_bytes((folder / "rerank-model" / "tokenizer.json").read_bytes())
    encoder = load_checkpoint(str(folder / "embed-model"))
    scorer = load_checkpoint(str(folder / "rerank-model"))
    checkpoints = {"chat": chatting, "embed": encoder, "rerank": scorer, "hear": load_checkpoint(str(WHISPER))}
    checkpoints["answer"] = load_checkpoint(str(ANSWERS / "bert"))
    found = {name: bundle_of(each, folder / name).path for name, each in checkpoints.items()}
    spell = txport.export(checkpoint, folder / "spell", target="cpu")  # with what `verify` compares
    return {"spell": spell.path, **found}


@contextlib.contextmanager
def running(service: Service, drain: float = PATIENCE) -> Iterator[str]:
    """Serve in a thread; yield the address. The end waits up to `drain` seconds for the requests that run."""
    server = uvicorn.Server(config_of(service, drain))
    listener = bound("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that `txport serve` prints when it listens."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.fullmatch(r"serving .* at (http://\S+)\n", line):
            return found[1]
    raise AssertionError(f"it ended with {process.wait()}")


def wait_for(state: Any) -> None:
    """Wait until a function returns something true."""
    until = time.monotonic() + PATIENCE
    while not state():
        assert time.monotonic() < until, "the state was not reached"
        time.sleep(0.005)


def client(url: str, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, **options)


def metric(http: httpx.Client, name: str, **labels: str) -> float:
    """The sum of a metric over the series that have these labels."""
    lines = http.get("/metrics").text.splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    found = [line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and all(x in line for x in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in found)
