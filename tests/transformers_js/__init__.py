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


def generate(bundle: Path, task: str, texts: Sequence[str]) -> Any:
    """The output of each text, by the pipeline of a task, or by two tokenizers for the task "pair"."""
    node = shutil.which("node")
    if node is None or not INSTALLED.is_dir():
        pytest.skip("needs Node.js and transformers.js: `make test` installs it where there is npm")
    command = [node, str(HERE / "generate.mjs"), str(bundle), task]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
