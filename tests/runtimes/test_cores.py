"""Threads stay on the cores that a process is held to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txport.bundles.bundle import Bundle
from txport.runtimes.ort.sessions import session_options
from txport.system import machine

PINNED = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[2])})
import txport
model = txport.load(sys.argv[1])
assert model.search([[4, 5, 2]], max_new_tokens=2)
for thread in os.listdir("/proc/self/task"):
    print(*os.sched_getaffinity(int(thread)))
"""
several = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or (os.cpu_count() or 1) == 1, reason="needs two cores, and a system that pins"
)


@several
def test_no_thread_leaves_the_core_of_a_pinned_process(bundle: Bundle) -> None:
    """A user pins by `taskset`, Docker by `--cpuset-cpus`."""
    core = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, "-c", PINNED, str(bundle.path), core]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {core}


@several
def test_each_physical_core_gets_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four processors, 0 and 2 are one core, 1 and 3 another."""
    for number in range(4):
        (tmp_path / f"{number}").write_text(f"{number % 2},{number % 2 + 2}\n")
    monkeypatch.setattr(machine, "SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for allowed, expected in (({0, 1, 2, 3}, None), ({0, 2}, 1), ({1}, 1), ({0, 1}, 2), ({1, 2, 3}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert machine.pinned_cores() == expected
        assert session_options(None, {}).intra_op_num_threads == (expected or 0)
        assert session_options(3, {}).intra_op_num_threads == 3


def test_without_a_word_on_siblings_each_processor_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SIBLINGS", "/nowhere/{}")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    assert machine.pinned_cores() == 2


def test_a_system_that_pins_nothing_uses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.pinned_cores() is None
