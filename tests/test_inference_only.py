"""A bundle runs where there is no PyTorch: in a new environment that holds the base dependencies and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import txport
from tests.instruction_sets import SETS
from txport.bundles.bundle import Bundle
from txport.checkpoints.folder import shipped
from txport.inspection.page import page
from txport.models.names import GOLDEN

ABSENT = ("torch", "onnx", "onnxscript", "onnx_ir", "safetensors", "transformers")
CLI = "from txport.cli import main; main()"


def base_dependencies(name: str, seen: dict[str, importlib.metadata.Distribution]) -> None:
    """A distribution and all that it needs here without any extra, by name."""
    distribution = importlib.metadata.distribution(name)
    if distribution.name in seen:
        return
    seen[distribution.name] = distribution
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            base_dependencies(requirement.name, seen)


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Show the packages of a distribution in another environment, as if they were installed there."""
    for part in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        if not (site / part).exists() and not part.endswith(".pth"):
            (site / part).symlink_to(distribution.locate_file(part))


@dataclass(frozen=True)
class Environment:
    """A Python of its own, with a home of its own."""

    python: Path
    home: Path

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run code with arguments, isolated from the caller's environment."""
        switches = [name for each in SETS.values() for name in each]  # the same kernels, for the same last digits
        known = ("PATH", "OMP_NUM_THREADS", "SYSTEMROOT", *switches)
        keep = {name: os.environ[name] for name in known if name in os.environ}
        environment = {**keep, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache")}
        command = [str(self.python), "-I", "-c", code, *arguments]
        return subprocess.run(command, cwd=self.home, env=environment, capture_output=True, text=True, check=False)

    def txport(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return self.run(CLI, *arguments)


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("lean")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    places = {"base": str(root / "venv"), "platbase": str(root / "venv")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=places))
    found: dict[str, importlib.metadata.Distribution] = {}
    base_dependencies("txport", found)
    for name, distribution in found.items():
        if name != "txport":  # an editable one lies elsewhere than its metadata says
            link(distribution, site)
    (site / "txport").symlink_to(Path(txport.__file__).parent)
    (root / "home").mkdir()
    return Environment(Path(sysconfig.get_path("scripts", "venv", vars=places)) / "python", root / "home")


@pytest.mark.parametrize("name", ABSENT)
def test_the_environment_is_what_it_says(name: str, lean: Environment) -> None:
    done = lean.run(f"import {name}")
    assert done.returncode == 1
    assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr


def test_no_environment_of_the_caller_shines_through(lean: Environment) -> None:
    done = lean.run(
        "import sys, txport; print(sys.prefix, *sys.path, sep='\\n'); import numpy, onnxruntime, tokenizers"
    )
    assert done.returncode == 0, done.stderr
    assert not any(line.startswith(sys.prefix) for line in done.stdout.splitlines())


def test_python_api(lean: Environment, bundle: Bundle) -> None:
    code = "import sys, txport; print(txport.load(sys.argv[1]).generate('bad', beams=3)[0].to_dict())"
    done = lean.run(code, str(bundle.path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(txport.load(bundle.path).generate("bad", beams=3)[0].to_dict())


def test_run(lean: Environment, bundle: Bundle) -> None:
    done = lean.txport("run", str(bundle.path), "bad", "chief", "--beams", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        each.output for each in txport.load(bundle.path).generate(["bad", "chief"], beams=2)
    ]


def test_verify(lean: Environment, bundle: Bundle, copied: Path) -> None:
    done = lean.txport("verify", str(bundle.path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "verdict: pass; portable fp32 on ort cpu" in done.stdout
    golden = copied / GOLDEN
    golden.write_bytes(golden.read_bytes()[:-1])
    done = lean.txport("verify", str(copied))
    assert (done.returncode, done.stderr) == (1, "")
    assert "golden.npz has " in done.stdout


def test_inspect(lean: Environment, bundle: Bundle, tmp_path: Path) -> None:
    done = lean.txport("inspect", str(bundle.path), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert "past_key_values.1.encoder.value" in done.stdout
    assert re.search(r"^\d+ operators: \d+ \w+", done.stdout, re.MULTILINE)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(bundle)


def test_doctor(lean: Environment) -> None:
    done = lean.txport("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert '"torch": null' in done.stdout
    assert '"CPUExecutionProvider": null' in done.stdout
    assert '"problems": []' in done.stdout


def commands(bundle: Path, checkpoint: Path) -> dict[str, list[str]]:
    return {
        "export": ["export", str(checkpoint), "out"],
        "export a preset": ["export", "preset:tiny", "out"],
        "matrix": ["matrix", str(checkpoint)],
        "verify on the reference": ["verify", str(bundle), "--runtime", "reference"],
        "parity": ["parity", str(bundle), "--checkpoint", str(checkpoint)],
        "parity on a runtime": ["parity", str(bundle), "--checkpoint", str(checkpoint), "--runtime", "reference"],
        "run on torch": ["run", str(bundle), "bad", "--runtime", "torch", "--checkpoint", str(checkpoint)],
        "run on the reference": ["run", str(bundle), "bad", "--runtime", "reference"],
        "run what must be exported first": ["run", "preset:tiny", "5 6"],
    }


EACH = """
import contextlib, io, json, sys
from txport.cli import main

def ended(arguments):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()

print(json.dumps({name: ended(arguments) for name, arguments in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def ends(lean: Environment, bundle: Bundle, checkpoint: Path) -> dict[str, tuple[int, str, str]]:
    """How each of the commands ends, in one process: it takes longer to start than they do."""
    done = lean.run(EACH, json.dumps(commands(bundle.path, checkpoint)))
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", list(commands(Path(), Path())))
def test_what_needs_pytorch_says_so(case: str, lean: Environment, ends: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = ends[case]
    assert (code, out) == (3, ""), err
    assert "Traceback" not in err
    line = err.splitlines()[-1]
    assert line.startswith("txport: ")
    assert "pip install 'txport[export]'" in line
    assert any(name in line for name in ABSENT)
    assert not (lean.home / "out").exists()


def test_what_ships_runs_or_says_what_it_needs(lean: Environment) -> None:
    """A checkpoint has to be exported first; a bundle would need nothing."""
    for name in shipped():
        done = lean.txport("run", name, "hello")
        assert done.returncode in (0, 3), done.stderr
        assert bool(done.stdout.strip()) == (done.returncode == 0)
        assert done.returncode == 0 or "pip install 'txport[export]'" in done.stderr
