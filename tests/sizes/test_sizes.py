"""Heads, contexts and windows of published models, in few layers: exports stay within a limit of memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sizes.folders import write_folder
from tests.sizes.shapes import SHAPES
from txport.checkpoints.checkpoint import load_checkpoint
from txport.proof.memory import memory_for
from txport.system.memory import readable

LIMIT = 3 << 30  # bytes of data; scores of all pairs of 131,072 positions would take terabytes
EXPORT = [sys.executable, "-m", "txport", "export"]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


@pytest.mark.parametrize(("name", "target"), [("smollm2-135m", "cpu"), ("modernbert-base", "portable")])
def test_a_long_context_is_exported_within_memory(name: str, target: str, tmp_path: Path) -> None:
    folder = write_folder(SHAPES[name].short(), tmp_path / "checkpoint")
    command = [*EXPORT, str(folder), str(tmp_path / "bundle"), "--target", target, "--verbose"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited)
    assert done.returncode == 0, done.stderr
    assert "up to the last one" in done.stderr
    assert "parity pass" in done.stdout


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_read_and_its_proof_is_estimated(name: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(write_folder(SHAPES[name].short(), tmp_path)))
    for target in ("portable", "cpu"):
        assert 0 < memory_for(checkpoint, target, "fp32") < LIMIT, readable(memory_for(checkpoint, target, "fp32"))
