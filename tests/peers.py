"""Programs in the environment of Optimum, whose libraries take seconds to import: one process has many jobs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def run(module: str, *arguments: str, given: Any = None) -> str:
    """What `python -m MODULE` writes there, with JSON on its standard input."""
    if not PEERS.is_file():
        pytest.skip("needs Optimum: `make test` installs it")
    command = [str(PEERS), "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def proceed(jobs: list[dict[str, Any]]) -> list[list[list[int]]]:
    """What Optimum's ORTModelForCausalLM finds in each job of `tests.loading.optimum_causal`."""
    found: list[list[list[int]]] = json.loads(run("tests.loading.optimum_causal", given=jobs))
    return found
