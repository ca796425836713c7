"""Bundles as transformers.js runs them, on Node.js: `make test` installs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
INSTALLED = HERE / "node_modules" / "@huggingface" / "transformers"
TOKENIZERS = HERE / "node_modules" / "@huggingface" / "tokenizers" / "dist" / "tokenizers.min.mjs"


def tokenizers() -> str:
    """The module of @huggingface/tokenizers; a test without it is skipped."""
    if not TOKENIZERS.is_file():
        pytest.skip("needs @huggingface/tokenizers: `make test` installs it where there is npm")
    return str(TOKENIZERS)


def generate(bundle: Path, task: str, texts: Sequence[str]) -> Any:
    """The output of each text, by the pipeline of a task, or by two tokenizers for the task "pair"."""
    return _run("generate.mjs", [str(bundle), task], texts)


def proceed(bundle: Path, prompts: Sequence[Sequence[int]], count: int) -> Any:
    """Up to so many token ids that follow each prompt of a causal model, by greedy search."""
    return _run("continue.mjs", [str(bundle), str(count)], prompts)


def loads(jobs: Sequence[dict[str, Any]]) -> list[Any]:
    """What each job of `loads.mjs` gives, all in one process."""
    found: list[Any] = _run("loads.mjs", [], jobs)
    return found


def read(jobs: Sequence[dict[str, Any]]) -> list[Any]:
    """What both readers of JavaScript make of the lines of each job of `read.mjs`, all in one process."""
    found: list[Any] = _run("read.mjs", [], jobs)
    return found


def _run(script: str, arguments: list[str], given: Any) -> Any:
    node = shutil.which("node")
    if node is None or not INSTALLED.is_dir():
        pytest.skip("needs Node.js and transformers.js: `make test` installs it where there is npm")
    command = [node, str(HERE / script), *arguments]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
