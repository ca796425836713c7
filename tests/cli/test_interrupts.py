"""Ctrl-C and other signals: one line and 130. `tests/system/kills.py` interrupts writers at each call."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import ENVIRONMENT, start
from txport.bundles.bundle import Bundle
from txport.cli import INTERRUPTED
from txport.system.terminal import ENDING

BENCH = ["--rounds", 3, "--source", 4, "--tokens", 4, "--threads", 1]


def test_only_the_parent_of_a_benchmark_is_told(bundle: Bundle, checkpoint: Path, tmp_path: Path) -> None:
    process = start("bench", bundle.path, "--checkpoint", checkpoint, *BENCH, "--rounds", 100_000)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("children are listed where the system shows them")
    while not children.read_text().split()[2:]:  # the tracker of resources is one of them
        time.sleep(0.05)
    ours = children.read_text().split()
    for pid in ours:
        os.kill(int(pid), signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "its processes do not hear a terminal's Ctrl-C"
    started = time.perf_counter()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, INTERRUPTED)
    assert time.perf_counter() - started < 20
    assert not any(is_running(pid) for pid in ours)


def is_running(pid: str) -> bool:
    for _ in range(50):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.1)
    return True


AT_EACH_LINE = """
import os, signal, sys
from txport.cli import commands, completion, guard, interrupts, main

FILES = {guard.__file__, interrupts.__file__}

def end(moment):
    def trace(frame, event, _):
        nonlocal moment
        if frame.f_code.co_filename not in FILES:
            return None
        moment -= event == "line"
        if not moment:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    reader, writer = os.pipe()
    if not os.fork():
        os.dup2(writer, 1), os.dup2(writer, 2)
        code = 0
        sys.settrace(trace)
        try:
            main()
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush()
        os._exit(code + 100 * (moment <= 0))
    os.close(writer)
    with open(reader) as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.wait()[1]), text

sys.argv = ["txport", *sys.argv[1:]]
moment, code = 0, 100
while code >= 100 or code < 0:
    moment += 1
    code, text = end(moment)
    print((code, text), flush=True)
"""


@pytest.mark.parametrize("arguments", [["--version"], ["run"]], ids=["good", "bad"])
def test_an_interrupt_at_each_line_of_what_answers_it(arguments: list[str]) -> None:
    """Before its end is decided, a command is interrupted; after it, it ends as it would have."""
    command = [sys.executable, "-c", AT_EACH_LINE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=True)
    *ends, undisturbed = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert undisturbed[0] == (2 if arguments == ["run"] else 0)
    assert len(ends) > 15
    late = (100 + undisturbed[0], undisturbed[1])
    first_line = (130, INTERRUPTED)  # where this process's own end is all there is to do
    told = {(code, text.removeprefix(undisturbed[1]) if code == 230 else text) for code, text in ends}
    assert told <= {(230, INTERRUPTED), first_line, late}


SWALLOWED = """
import os, signal, sys, time
from txport.cli import commands, main
import click

class Trap:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

@click.command()
def wait():
    {trap}
    time.sleep(30)

commands.cli.add_command(wait)
sys.argv = ["txport", "wait"]
main()
"""
RUN = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5); raise SystemExit(7)"
TRAPS = {
    "a destructor": "Trap()",
    "a callback": "import weakref; each = Trap(); weakref.finalize(each, print); del each",
    "an import": "sys.path.insert(0, sys.argv.pop() if False else {folder!r}); import interrupts_itself",
    "code that a notebook runs": f"exec({RUN!r}, {{{{'__name__': 'notebook'}}}})",
    "a library that raises another error": (
        "try:\n        os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
        "    except BaseException:\n        raise ImportError('x', name='torch')"
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_no_interrupt_is_swallowed(trap: str, tmp_path: Path) -> None:
    slow = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.1)\nopen('whole', 'w').close()\n"
    (tmp_path / "interrupts_itself.py").write_text(slow)
    code = SWALLOWED.format(trap=TRAPS[trap].format(folder=str(tmp_path)))
    command = [sys.executable, "-c", code]
    own: dict[str, Any] = {"env": ENVIRONMENT, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, **own)
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)
    assert (tmp_path / "whole").exists() == (trap == "an import"), "a package is imported whole"


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield before
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_command_within_a_program_gives_its_handlers_back(handlers: dict[int, object]) -> None:
    from txport.cli import main

    main(["--version"])


def test_a_process_that_was_told_to_ignore_them_does(bundle: Bundle, tmp_path: Path) -> None:
    """As those that a shell puts into the background, or nohup starts."""
    deaf = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    process = start("run", bundle.path, "bad", **deaf)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.returncode == 0
    process.communicate()
