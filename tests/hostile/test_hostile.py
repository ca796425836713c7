"""A drawn part of the attack in the suite, and that the attack has teeth: what it is there to find, it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.case import Command, Place, command
from tests.hostile.judge import KINDS, Ended, judge, snapshot
from tests.hostile.sound import Sound

ROOT = Path(__file__).parents[2]
GUARD = 300  # seconds, against a hang; it takes about 40

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the attack forks, and reads /proc")


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, which one that has run PyTorch must not."""
    command = [sys.executable, "-m", "tests.hostile", "--jobs", "1", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=GUARD)


@needs_linux
def test_hostile_input_breaks_no_rule() -> None:
    ended = attack("--seed", "1", "--mutations", "30", "--every", "41", "--kills", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "cases failed" in ended.stdout


@needs_linux
def test_planted_defects_are_found() -> None:
    """Commands that crash, hang, write elsewhere, print what they must not, take too much memory, and a good one."""
    ended = attack("--planted", "--limit", "8")
    assert ended.returncode == 1
    found = {line.strip() for line in ended.stdout.splitlines()}
    for kind in KINDS:
        assert any(line.startswith(f"{kind}, ") for line in found), (kind, ended.stdout)
    assert "planted/good" not in ended.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place", Sound(tmp_path))


def kinds(place: Place, what: Command, code: int, out: str = "", err: str = "", peak: int = 0) -> set[str]:
    seen = snapshot(place)
    return {breach.kind for breach in judge(what, Ended(code, out, err, peak, seen, seen), place)}


RUN = command("run", "bundle", codes=[2])


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (2, "", "txport: 'a' is no bundle; export it\n", set()),
        (2, "", "Usage: txport run\n\nError: no such option '--x'\n", set()),
        (2, "", "", {"message"}),
        (2, "", "txport: one\ntxport: 2\n", {"message"}),
        (2, "", "txport: KeyError('a')\n", {"message"}),
        (2, "", "txport: 'a'\n", {"message"}),
        (2, "", "txport: something is wrong\n", {"message"}),
        (2, "", f"txport: '{'a' * 1000}' is no bundle\n", {"message"}),
        (2, "", "no bundle 'a'\n", {"message"}),
        (2, "", "txport: '\x1b[31m' is no bundle\n", {"control characters"}),
        (2, "", "txport: '\u202e' is no bundle\n", {"control characters"}),
        (3, "", "txport: 'a' is not here\n", {"exit code"}),
        (0, "", "", {"exit code"}),
        (1, "Traceback (most recent call last):\nKeyError: 'a'", "", {"traceback"}),
    ],
)
def test_what_a_command_says_is_judged(place: Place, code: int, out: str, err: str, expected: set[str]) -> None:
    assert kinds(place, RUN, code, out, err) == expected


def test_json_is_judged(place: Place) -> None:
    what = command("inspect", "bundle", "--json", codes=[0])
    assert kinds(place, what, 0, '{"a": 1.5}') == set()
    assert kinds(place, what, 0, '{"a": NaN}') == {"JSON"}
    assert kinds(place, what, 0, "") == {"JSON"}


def test_memory_is_judged(place: Place) -> None:
    assert kinds(place, command("run", codes=[0]), 0, peak=2_000_000_000) == {"memory"}


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place.home / "new").touch(),
        lambda place: (place.temporary / "new").mkdir(),
        lambda place: (place.outside / "precious.bin").write_bytes(b""),
        lambda place: (place.outside / "precious.bin").unlink(),
        lambda place: (place.inputs / "link").symlink_to("nowhere"),
        lambda place: place.cwd.chmod(0o700),
    ],
)
def test_changes_outside_are_judged(place: Place, change: Callable[[Place], object]) -> None:
    before = snapshot(place)
    change(place)
    (place.out / "new").touch()
    breaches = judge(command("run", codes=[0]), Ended(0, "", "", 0, before, snapshot(place)), place)
    assert {breach.kind for breach in breaches} == {"files outside"}


def test_pages_are_judged(place: Place) -> None:
    (place.out / "m.md").write_text("| <img src=x> |", encoding="utf-8")
    assert kinds(place, command("parity", codes=[0]), 0) == {"raw HTML"}
    (place.out / "m.md").write_text("| `<img src=x>` |", encoding="utf-8")
    assert kinds(place, command("parity", codes=[0]), 0) == set()
