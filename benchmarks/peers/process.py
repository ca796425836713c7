"""The client of a worker: start it, send requests, and stop it while the other side of a comparison runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from txport.errors import UnavailableError

ROOT = Path(__file__).parents[2]


class WorkerError(UnavailableError):
    """An engine that could not do what was requested."""


class Worker:
    """A process of `benchmarks.peers.worker`, with its own Python and environment."""

    def __init__(self, python: Path, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_"))}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as stream:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                encoding="utf-8",
                cwd=ROOT,
                env={**plain, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", **environment},
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(self, do: str, **details: Any) -> dict[str, Any]:
        """Send a request and return its answer; raise `WorkerError` for an error or if the process has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.resume()
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"the process died; {self._log} has what it said")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def pause(self) -> None:
        """Stop all threads of the process, so that none spins while the other side runs."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # the signal takes effect later

    def resume(self) -> None:
        """Continue the process; does nothing if it is running."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self.resume()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
