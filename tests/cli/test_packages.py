"""A package that is installed and does not import: exit 3, its name, the loader's message and the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txport
from tests.cli.processes import ENVIRONMENT, HEAVY, assert_one_line, run, without
from txport.bundles.bundle import Bundle
from txport.errors import UnavailableError
from txport.system.packages import import_problem, needed

BREAKS = {
    "ImportError": "raise ImportError('libfoo.so.1: cannot open shared object file')",
    "OSError": "raise OSError('/x/libbar.so: undefined symbol: baz')",
    "ABI": "raise RuntimeError('module compiled against ABI version 0x1000009')",
    "a part is missing": "from {name}.capi import nothing",
    "empty": "",
}
RUN, REFERENCE, EXPORT = "run {bundle} bad", "run {bundle} bad --runtime reference", "export {checkpoint} {out}"
COMMANDS = {  # what needs a package, and how that breaks
    "numpy": (RUN, "ImportError"),
    "onnxruntime": (RUN, "OSError"),
    "tokenizers": (RUN, "ImportError"),
    "onnx": (REFERENCE, "OSError"),  # without PyTorch, which takes seconds to import
    "torch": (EXPORT, "ImportError"),
    "safetensors": (EXPORT, "OSError"),
}


def broken(folder: Path, code: str, *names: str) -> dict[str, str]:
    """An environment in which packages lie first that break."""
    for name in names:
        (folder / "first" / name).mkdir(parents=True)
        (folder / "first" / name / "__init__.py").write_text(code.format(name=name) + "\n")
    path = os.pathsep.join([str(folder / "first"), str(Path(txport.__file__).parent.parent)])
    return {**ENVIRONMENT, "PYTHONPATH": path}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_package(name: str, bundle: Bundle, checkpoint: Path, tmp_path: Path) -> None:
    command, how = COMMANDS[name]
    words = command.format(bundle=bundle.path, checkpoint=checkpoint, out=tmp_path / "out").split()
    done = run(*words, env=broken(tmp_path, BREAKS[how], name))
    assert_one_line(done, f"needs {name}, which is installed but does not import: ", 3)
    assert ("libfoo.so.1" if how == "ImportError" else "libbar.so") in done.stderr
    assert "; pip install --force-reinstall " in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("numpy",), tuple(COMMANDS)[1:]], ids=["numpy", "the others"])
def test_doctor_says_so(names: tuple[str, ...], tmp_path: Path) -> None:
    absent = sorted({*HEAVY} - {*names})
    done = run("doctor", "--json", before=without(*absent), env=broken(tmp_path, BREAKS["OSError"], *names))
    assert (done.returncode, done.stderr) == (1, "")
    problems = json.loads(done.stdout)["problems"]
    for name in names:
        said = f"needs {name}, which is installed but does not import: /x/libbar.so"
        assert any(said in each for each in problems), name


def test_inspect_needs_no_onnx(bundle: Bundle, tmp_path: Path) -> None:
    done = run("inspect", bundle.path, env=broken(tmp_path, BREAKS["OSError"], "onnx"))
    assert (done.returncode, done.stderr) == (0, "")
    assert " operators: " in done.stdout


@pytest.mark.parametrize("name", ["onnxruntime", "tokenizers"])
def test_the_api_raises_an_error_of_ours(name: str, bundle: Bundle, tmp_path: Path) -> None:
    code = (
        "import sys, txport\ntry:\n    txport.load(sys.argv[1])\nexcept txport.TxportError as e:\n    print(type(e), e)"
    )
    environment = broken(tmp_path, BREAKS["ImportError"], name)
    command = [sys.executable, "-c", code, str(bundle.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "UnavailableError" in done.stdout
    assert f"needs {name}, which is installed but does not import: libfoo.so.1" in done.stdout


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


def test_what_is_no_package_of_others_is_not_blamed_on_one() -> None:
    for error in (
        ValueError("x"),
        OSError("x"),
        AttributeError("x", obj=3),
        ImportError("x", name="txport.nothing"),
        AttributeError("x", obj=txport),
        ModuleNotFoundError("x", name="txport.nothing"),
        MemoryError(),
    ):
        assert import_problem(caught(error)) is None
        with pytest.raises(type(error)), needed("x"):
            raise error
    with pytest.raises(UnavailableError) as absent, needed("it", "a test"):
        import there_is_none  # type: ignore[import-not-found] # noqa: F401
    assert str(absent.value) == "a test needs there_is_none, which is not installed: pip install 'it'"
