"""`txport doctor` on installations that are broken: wheels that have overwritten each other's files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.cli.processes import ENVIRONMENT, LIGHT, run

FILES = {"onnxruntime/__init__.py": "", "onnxruntime/capi/build_and_package_info.py": "package_name = '{name}'\n"}
SAME = "onnxruntime/LICENSE"


def install(site: Path, name: str, *, lies: bool) -> None:
    """A wheel's list of files as pip keeps it; and the files, if they are those that came last."""
    info = site / f"{name.replace('-', '_')}-1.31.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.31.1\n")
    lines = []
    for file, text in {**FILES, SAME: "the same"}.items():
        content = (text.format(name=name) or f"raise ImportError('{name}')\n").encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(content)}\n")
        if lies:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_bytes(content)
    (info / "RECORD").write_text("".join([*lines, f"{info.name}/RECORD,,\n"]))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two wheels of ONNX Runtime, of which the one without CUDA was installed last."""
    install(tmp_path / "site", "onnxruntime-gpu", lies=False)
    install(tmp_path / "site", "onnxruntime", lies=True)
    return tmp_path / "site"


def test_two_wheels_at_once(site: Path) -> None:
    path = os.pathsep.join([str(site), str(Path(__file__).parents[3])])
    done = run("doctor", "--json", before=LIGHT, env={**ENVIRONMENT, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (1, "")
    values = json.loads(done.stdout)
    assert (
        "2 ONNX Runtime wheels are installed (onnxruntime, onnxruntime-gpu), which replace each other's files; "
        "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu"
    ) in values["problems"]
    assert values["gpu"]["wheel"] == "", "it does not import"
    assert any("onnxruntime, which is installed but does not import" in each for each in values["problems"])
