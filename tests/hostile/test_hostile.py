"""A drawn part of the attack in the suite, and that the attack has teeth: what it is there to find, it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.judge import KINDS

ROOT = Path(__file__).parents[2]
GUARD = 300  # seconds, against a hang; it takes about 40

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the attack forks, and reads /proc")


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, which one that has run PyTorch must not."""
    command = [sys.executable, "-m", "tests.hostile", "--jobs", "1", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=GUARD)


@needs_linux
def test_hostile_input_breaks_no_rule() -> None:
    ended = attack("--seed", "1", "--mutations", "30", "--every", "61", "--kills", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "cases failed" in ended.stdout


@needs_linux
def test_planted_defects_are_found() -> None:
    """Commands that crash, hang, write elsewhere, print what they must not, take too much memory, and a good one."""
    ended = attack("--planted", "--limit", "15")  # a busy machine takes seconds for a GB of memory
    assert ended.returncode == 1
    found = {line.strip() for line in ended.stdout.splitlines()}
    for kind in KINDS:
        assert any(line.startswith(f"{kind}, ") for line in found), (kind, ended.stdout)
    assert "planted/good" not in ended.stdout
