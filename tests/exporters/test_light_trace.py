"""A trace loads nothing that it does not need: PyTorch's compiler takes a second, and leaves folders behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXPORT = """
import sys
from pathlib import Path
from txport.models.checkpoint import load_checkpoint
from txport.proof.proven import write
write(load_checkpoint(sys.argv[1]), Path(sys.argv[2]), target=sys.argv[3])
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(
    ("preset", "target"), [("tiny", "cpu"), ("gpt2-tiny", "cpu"), ("whisper-mini-tiny", "portable")]
)
def test_an_export_loads_no_compiler(preset: str, target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXPORT, f"preset:{preset}", str(tmp_path), target]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
