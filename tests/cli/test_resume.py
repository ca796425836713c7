"""`run --resume`: after any end of a run, each text has its output once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import txport
from tests.cli.processes import assert_one_line, run, start
from txport.bundles.bundle import Bundle

TEXTS = [f"{word}{end}" for end in ("", "a", "ed", "c") for word in ("bad", "chief", "ace", "dab", "face")] * 15
ONE_BY_ONE = ["--batch-size", 1]  # no text waits for longer ones


@pytest.fixture
def place(tmp_path: Path, bundle: Bundle) -> Path:
    (tmp_path / "lines").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (tmp_path / "bundle").symlink_to(bundle.path)
    return tmp_path


def command(*more: object) -> list[object]:
    return ["run", "bundle", "--input", "lines", "--output", "out", *ONE_BY_ONE, *more]


def kept(place: Path) -> int:
    """The number of outputs in OUT.partial."""
    partial = place / "out.partial"
    return partial.read_bytes().count(b"\n") - 1 if partial.exists() else 0


def ended_at(count: int, number: int, place: Path, *more: object) -> tuple[int, str]:
    """Start a run and end it by a signal as soon as OUT.partial has this many outputs: -> its exit code and stderr."""
    process = start(*command(*more), cwd=place)
    while process.poll() is None and kept(place) < count:
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, err


def lines_of(place: Path) -> list[str]:
    return (place / "out").read_text(encoding="utf-8").splitlines()


def test_each_text_has_its_output_once_after_kills_at_drawn_moments(place: Path, bundle: Bundle) -> None:
    draw = random.Random(3)
    resumed: list[object] = []
    for count in sorted(draw.sample(range(1, len(TEXTS) - 100), 3)):
        assert ended_at(count, signal.SIGKILL, place, *resumed) == (-signal.SIGKILL, "")
        assert not (place / "out").exists()
        resumed = ["--resume"]
        with (place / "out.partial").open("r+b") as file:  # a power failure may lose the end of the last line
            file.truncate((place / "out.partial").stat().st_size - draw.randrange(2))
    assert 0 < kept(place) < len(TEXTS)
    done = run(*command("--resume"), cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(os.listdir(place)) == ["bundle", "lines", "out"]  # noqa: PTH208
    outputs = {each.input: each.output for each in txport.load(bundle.path).generate(set(TEXTS), batch_size=1)}
    assert lines_of(place) == [outputs[text] for text in TEXTS]


def test_an_interrupt_says_what_is_kept_and_what_else_it_takes(place: Path) -> None:
    code, err = ended_at(20, signal.SIGINT, place)
    assert code == 130
    what = f"out.partial keeps {kept(place)} of {len(TEXTS)} outputs"
    partial = place.resolve() / "out.partial"
    assert err == (
        f"txport: interrupted; nothing was left half-written; {partial.parent}/{what}, and --resume goes on there\n"
    )
    before = partial.read_bytes()
    assert_one_line(run(*command(), cwd=place), f"{what} of an interrupted run; --resume goes on there", 2)
    assert_one_line(run(*command("--resume", "--beams", 2, "--json"), cwd=place), "another --json, --beams; give", 2)
    (place / "lines").write_text("bad\n", encoding="utf-8")
    assert_one_line(run(*command("--resume"), cwd=place), "was begun with another input; give the same", 2)
    assert partial.read_bytes() == before


@pytest.mark.parametrize("size", [0, 400])  # none or a part of the first line of OUT.partial
def test_a_disk_that_is_full_from_the_start_is_left_as_it_was(size: int, place: Path) -> None:
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size}, -1))"
    done = run(*command(), cwd=place, before=limit)
    assert_one_line(done, "can't be written: File too large; choose another place", 2)
    assert sorted(os.listdir(place)) == ["bundle", "lines"]  # noqa: PTH208


def test_what_no_run_has_left_stays(place: Path) -> None:
    (place / "out.partial").write_text("my own\n", encoding="utf-8")
    assert_one_line(run(*command("--resume"), cwd=place), "is not what an interrupted run has left", 2)
    assert (place / "out.partial").read_text(encoding="utf-8") == "my own\n"


@pytest.mark.parametrize(
    "arguments", [["--input", "lines"], ["--output", "out"], ["--stream", "--input", "lines", "--output", "out"]]
)
def test_a_run_that_keeps_nothing_does_not_resume(arguments: list[str], place: Path) -> None:
    done = run("run", "bundle", *arguments, "--resume", cwd=place, input="bad\n")
    assert (done.returncode, done.stdout, "--resume" in done.stderr) == (2, "", True), done.stderr
