"""A command opens no socket and writes nothing but its output, whatever the libraries below it would like to tell."""

from __future__ import annotations

import ast
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txport
from tests.cli.processes import ENVIRONMENT, run
from txport.bundles.bundle import Bundle

PACKAGE = Path(txport.__file__).parent
SWITCH = "ORT_DISABLE_TELEMETRY"
# A seccomp filter by which the kernel kills a process of this architecture that opens a socket, from native code too.
SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
NO_SOCKETS = """
import ctypes, struct
architecture, socket = {numbers}
steps = [
    (0x20, 0, 0, 4), (0x15, 0, 3, architecture),  # seccomp_data.arch
    (0x20, 0, 0, 0), (0x15, 0, 1, socket),  # seccomp_data.nr
    (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000),  # kill the process, allow
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):  # no new privileges, seccomp by filter
    raise SystemExit(77)
"""


@pytest.fixture(scope="module")
def no_sockets() -> str:
    if sys.platform != "linux" or platform.machine() not in SOCKET:
        pytest.skip("the kernel's filter is known for Linux on x86-64 and arm64")
    code = NO_SOCKETS.format(numbers=SOCKET[platform.machine()])
    opening = "\nimport socket; socket.socket()"
    done = subprocess.run([sys.executable, "-c", code + opening], check=False)
    if done.returncode == 77:
        pytest.skip("this kernel takes no filter")
    assert done.returncode == -signal.SIGSYS, "the filter must catch what it is for"
    return code


def private(home: Path, **changes: str) -> dict[str, str]:
    """The environment of a user with an empty home."""
    kept = {name: value for name, value in ENVIRONMENT.items() if name != SWITCH and not name.startswith("XDG_")}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1", **changes}


@pytest.mark.parametrize("command", ["run {bundle} bad", "verify {bundle}", "doctor", "inspect {bundle}"])
def test_a_command_opens_no_socket_and_leaves_no_file(
    command: str, bundle: Bundle, tmp_path: Path, no_sockets: str
) -> None:
    done = run(*command.format(bundle=bundle.path).split(), before=no_sockets, env=private(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*")) == []


def test_so_does_the_api(bundle: Bundle, tmp_path: Path, no_sockets: str) -> None:
    code = no_sockets + "\nimport sys, txport; txport.load(sys.argv[1]).generate('bad')"
    command = [sys.executable, "-c", code, str(bundle.path)]
    done = subprocess.run(command, env=private(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_whoever_has_set_the_switch_keeps_it(given: str | None, found: str, tmp_path: Path) -> None:
    code = f"from txport.runtimes.ort.onnx_runtime import ort; import os; print(os.environ[{SWITCH!r}])"
    environment = private(tmp_path, **({SWITCH: given} if given else {}))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [found]


def importers(package: str) -> list[str]:
    found = []
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if package in text else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == package for name in names):
                found.append(file.relative_to(PACKAGE).as_posix())
    return found


def test_one_module_imports_onnx_runtime_after_the_switch() -> None:
    assert importers("onnxruntime") == ["runtimes/ort/onnx_runtime.py"]
    body = ast.parse((PACKAGE / "runtimes/ort/onnx_runtime.py").read_text(encoding="utf-8")).body
    first = next(number for number, node in enumerate(body) if "onnxruntime" in ast.unparse(node)[:20])
    assert any(SWITCH in ast.unparse(node) for node in body[1:first])


def test_the_tests_themselves_are_silent() -> None:
    assert os.environ[SWITCH]
