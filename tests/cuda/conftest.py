"""ONNX Runtime's CUDA provider on a device that computes nothing, where a compiler can make one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.fake.build import build, providers

ROOT = Path(__file__).parents[2]
TOOLS = ("cc", "nm", "readelf")


@dataclass(frozen=True)
class FakeCuda:
    """The libraries of CUDA, `cuda`, and those with TensorRT's beside them, `everything`."""

    cuda: Path
    everything: Path
    work: Path

    def run(self, module: str, *arguments: str, libraries: Path | None = None, **environment: str) -> None:
        """A module in a process of its own that finds the libraries."""
        command = [sys.executable, "-m", module, *arguments]
        found = {**os.environ, "LD_LIBRARY_PATH": str(libraries or self.cuda), "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(command, cwd=ROOT, env=found, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    def ask(self, *requests: dict[str, Any], libraries: Path | None = None, **environment: str) -> list[dict[str, Any]]:
        """What the provider says to each request; see `fake.asked`."""
        asked, said = self.work / "requests.json", self.work / "answers.json"
        asked.write_text(json.dumps(requests), encoding="utf-8")
        self.run("tests.cuda.fake.asked", str(asked), str(said), libraries=libraries, **environment)
        answers: list[dict[str, Any]] = json.loads(said.read_text(encoding="utf-8"))
        return answers


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"no device can be made up here: there is no {', '.join(missing)}")
    if not sys.platform.startswith("linux") or not providers():
        pytest.skip("no device can be made up here: the installed ONNX Runtime has no CUDA provider for Linux")
    folder = tmp_path_factory.mktemp("cuda")
    return FakeCuda(*build(folder), folder)
