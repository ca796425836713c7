"""A trace loads nothing that it does not need: PyTorch's compiler takes a second, and leaves folders behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXPORT = """
import sys
from pathlib import Path
from txport.checkpoints.checkpoint import load_checkpoint
from txport.proof.proven import write
for preset, target in (each.split() for each in sys.argv[2:]):
    folder = Path(sys.argv[1]) / preset
    folder.mkdir()
    write(load_checkpoint(f"preset:{preset}"), folder, target=target)
    print(preset, "torch._dynamo" in sys.modules)
"""
KINDS = ["tiny cpu", "gpt2-tiny cpu", "whisper-mini-tiny portable"]


def test_an_export_loads_no_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXPORT, str(tmp_path), *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{kind.split()[0]} False" for kind in KINDS]
