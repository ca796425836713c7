"""Threads stay on the cores that a process is held to, and are no more than it has processor time for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txport.bundles.bundle import Bundle
from txport.runtimes.ort.sessions import session_options
from txport.system import cores

PINNED = """
import contextlib, os, sys
os.sched_setaffinity(0, {int(sys.argv[2])})
import txport
model = txport.load(sys.argv[1])
assert model.search([[4, 5, 2]], max_new_tokens=2)
for thread in os.listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # one that read the bundle, and ends
        print(*os.sched_getaffinity(int(thread)))
"""
several = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or (os.cpu_count() or 1) == 1, reason="needs two cores, and a system that pins"
)


@pytest.fixture(autouse=True)
def no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests themselves are limited to."""
    monkeypatch.setattr(cores, "GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(cores, "MOUNTED", str(tmp_path / "mounted"))


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
    monkeypatch.setattr(cores, "SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for allowed, expected in (({0, 1, 2, 3}, None), ({0, 2}, 1), ({1}, 1), ({0, 1}, 2), ({1, 2, 3}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert cores.core_limit() == expected
        assert session_options(None, {}).intra_op_num_threads == (expected or 0)
        assert session_options(3, {}).intra_op_num_threads == 3


def test_without_a_word_on_siblings_each_processor_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SIBLINGS", "/nowhere/{}")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    assert cores.core_limit() == 2


def test_a_system_that_pins_nothing_uses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores.core_limit() is None


SECOND, FIRST = "0::{}\n", "5:memory:/else\n4:cpu,cpuacct:{}\n0::/\n"
V1_QUOTA, V1_PERIOD = "cpu/{}cpu.cfs_quota_us", "cpu/{}cpu.cfs_period_us"
GROUPS: dict[str, tuple[str, dict[str, str], int | None]] = {
    "docker --cpus 2": (SECOND.format("/"), {"cpu.max": "200000 100000\n"}, 2),
    "a part of a core counts as one": (SECOND.format("/"), {"cpu.max": "110000 100000\n"}, 2),
    "less than a core": (SECOND.format("/"), {"cpu.max": "5000 100000\n"}, 1),
    "no limit": (SECOND.format("/"), {"cpu.max": "max 100000\n"}, None),
    "more than there is": (SECOND.format("/"), {"cpu.max": "900000 100000\n"}, None),
    "a service": (SECOND.format("/system.slice/a b:c.service"), {"system.slice/a b:c.service/cpu.max": "1 1"}, 1),
    "the group around it has less": (SECOND.format("/a/b"), {"a/b/cpu.max": "3 1", "a/cpu.max": "2 1"}, 2),
    "version 1": (FIRST.format("/"), {V1_QUOTA.format(""): "250000\n", V1_PERIOD.format(""): "100000\n"}, 3),
    "version 1, by its name outside": (
        FIRST.format("/docker/4f"),
        {V1_QUOTA.format(""): "150000", V1_PERIOD.format(""): "100000"},
        2,
    ),
    "version 1, no limit": (FIRST.format("/"), {V1_QUOTA.format(""): "-1\n", V1_PERIOD.format(""): "100000\n"}, None),
    "files that say nothing": (SECOND.format("/"), {"cpu.max": "much\n"}, None),
    "no period": (SECOND.format("/"), {"cpu.max": "100000 0\n"}, None),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_threads_are_no_more_than_there_is_processor_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with the time of two cores, on a machine with 64, would have its threads stopped most of the time."""
    groups, files, expected = GROUPS[kind]
    (tmp_path / "groups").write_text(groups)
    for name, content in files.items():
        file = tmp_path / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    monkeypatch.setattr(cores, "SIBLINGS", "/nowhere/{}")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert cores.core_limit() == expected
    assert cores.cores() == (expected or 4)
    assert session_options(None, {}).intra_op_num_threads == (expected or 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert (cores.core_limit(), cores.cores()) == (1, 1)


def test_processor_time_for_more_than_the_physical_cores_limits_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four processors, 0 and 2 are one core, 1 and 3 another."""
    for number in range(4):
        (tmp_path / f"{number}").write_text(f"{number % 2},{number % 2 + 2}\n")
    (tmp_path / "groups").write_text("0::/\n")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/cpu.max").write_text("300000 100000\n")
    monkeypatch.setattr(cores, "SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert (cores.core_limit(), cores.cores()) == (None, 3)
