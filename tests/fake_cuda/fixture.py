"""ONNX Runtime's CUDA provider on a device that computes nothing, where a compiler can make one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tests.fake_cuda.build import Folders, build, folders, providers

ROOT = Path(__file__).parents[2]
TOOLS = ("cc", "nm", "readelf")


@dataclass(frozen=True)
class FakeCuda:
    """The libraries, and a folder for files."""

    libraries: Folders
    work: Path

    def environment(self, libraries: Path | None = None, **more: str) -> dict[str, str]:
        """That of a process which finds libraries, all of CUDA and cuDNN unless told otherwise."""
        found = str(libraries or self.libraries.with_cudnn)
        return {**os.environ, "LD_LIBRARY_PATH": found, "PYTHONPATH": str(ROOT), **more}

    def python(self, *arguments: str, libraries: Path | None = None, **more: str) -> str:
        """What Python prints in a process of its own."""
        command = [sys.executable, *arguments]
        found = self.environment(libraries, **more)
        done = subprocess.run(command, cwd=ROOT, env=found, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def ask(self, *requests: dict[str, Any], libraries: Path | None = None, **more: str) -> list[dict[str, Any]]:
        """What the provider says to each request; see `fake.asked`."""
        asked = self.work / "requests.json"
        said = self.work / "answers.json"
        asked.write_text(json.dumps(requests), encoding="utf-8")
        self.python("-m", "tests.fake_cuda.asked", str(asked), str(said), libraries=libraries, **more)
        answers: list[dict[str, Any]] = json.loads(said.read_text(encoding="utf-8"))
        return answers


def why_not() -> str:
    """Why there can't be one here."""
    if not sys.platform.startswith("linux") or not providers():
        return "the installed ONNX Runtime has no CUDA provider for Linux"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"there is no {', '.join(missing)}"
    if not str(getattr(onnxruntime, "cuda_version", "")).startswith("13."):  # `device.c` has its structures
        return "the installed ONNX Runtime was not built with CUDA 13"
    if (providers()[0].parents[2] / "nvidia").exists():
        return "CUDA's own libraries are installed, and are found first"
    return ""


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    """Compiled once for all processes of a run."""
    if why := why_not():
        pytest.skip(f"no device can be made up here: {why}")
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder = shared / "fake-cuda"
    with (shared / "fake-cuda.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=shared) as built:
                build(Path(built) / "whole")
                (Path(built) / "whole").rename(folder)
    return FakeCuda(folders(folder), tmp_path_factory.mktemp("cuda"))
