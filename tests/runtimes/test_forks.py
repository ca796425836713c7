"""A model that a process inherits by `fork`: the process ends, and deletes and replaces the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import load_checkpoint

ENDS = {
    "exit": "sys.exit(0)",
    "deletion": "del model; gc.collect(); os._exit(0)",
    "replacement": "model = txport.load(sys.argv[1]); model.search([[3, 4]], max_new_tokens=2); sys.exit(0)",
}
# Two threads, also on a machine with one core: without threads, nothing would hang.
PROGRAM = """
import gc, os, signal, sys, txport
model = txport.load(sys.argv[1], threads=2)
model.search([[3, 4]], max_new_tokens=2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    {end}
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("end", ENDS)
def test_a_child_with_an_inherited_model_ends(end: str, shared_bundle: Path) -> None:
    program = PROGRAM.format(end=ENDS[end])
    done = subprocess.run([sys.executable, "-c", program, str(shared_bundle)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def shared_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fork") / "bundle"
    return bundle_of(load_checkpoint("g2p-en"), folder, "portable").path
