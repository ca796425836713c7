"""Stages: several processes that write to one place, and what those that were killed left there."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.system.folders import contents, names, write
from txport.errors import OutputError
from txport.system.files import staged_folder
from txport.system.stages import recover


def test_two_that_replace_the_same_folder_both_end_well(old: Path) -> None:
    with staged_folder(old, force=True) as first:
        (first / "file").write_text("first")
        with staged_folder(old, force=True) as second:  # leaves alone what the first is at work on
            (second / "file").write_text("second")
        assert contents(old) == {"file": "second"}
    assert contents(old.parent) == {"out/file": "first"}
    assert names(old.parent) == ["out"]


def test_of_two_that_make_the_same_folder_the_slower_fails(tmp_path: Path) -> None:
    def slower() -> None:
        with staged_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("slower")
            write(tmp_path / "out", "quicker")

    with pytest.raises(OutputError, match="out can't be written: Directory not empty; nothing was left there"):
        slower()
    assert contents(tmp_path) == {"out/onnx/graph": "quicker", "out/manifest": "quicker"}
    assert names(tmp_path) == ["out"]


def test_what_became_another_kind_of_folder_meanwhile_is_not_replaced(old: Path) -> None:
    def slower() -> None:
        with staged_folder(old, force=True, holding="precious"):
            (old / "precious").rename(old / "home")

    with pytest.raises(OutputError, match="out has no precious, so force=True does not replace it"):
        slower()
    assert contents(old.parent) == {"out/home": "old"}


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_others_are_at_work_on_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool) -> None:
    """Without locks nobody knows whether others are, so all stays."""
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with staged_folder(tmp_path / "out") as stage:
        recover(tmp_path / "out")
        assert stage.is_dir()


def no_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_without_locks_a_folder_is_written_all_the_same(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(old, force=True)
    assert contents(old.parent) == {"out/onnx/graph": "new", "out/manifest": "new"}


# ------------------------------------------------------------------------------------------------ what was killed


def leave(old: Path, *, moved: bool) -> None:
    """What a process leaves that was killed with its new folder whole, and perhaps with the old one moved aside."""
    stage = old.with_name(".out.partial-0123456789abcdef")
    (stage / "new").mkdir(parents=True)
    (stage / "new" / "manifest").write_text("half")
    if moved:
        old.rename(stage / "old")


@pytest.mark.parametrize("moved", [True, False])
def test_what_a_killed_process_left_is_put_in_order_and_told(old: Path, moved: bool) -> None:
    leave(old, moved=moved)
    said: list[str] = []
    with (
        pytest.raises(OutputError, match="out exists; force=True replaces it"),
        staged_folder(old, progress=said.append),
    ):
        pytest.fail("the block ran")
    assert contents(old.parent) == {"out/precious": "old"}
    assert names(old.parent) == ["out"]
    stage = old.with_name(".out.partial-0123456789abcdef")
    what = f"put back {old}, moved aside" if moved else f"removed {stage}, left"
    assert said == [f"{what} by a command that was killed"]


def test_the_old_folder_comes_back_where_nothing_stands_in_its_place_any_more(old: Path) -> None:
    """Even if the new one was there, and the user has moved it elsewhere since: nobody knows that, and it is a copy."""
    leave(old, moved=True)
    (old.with_name(".out.partial-0123456789abcdef") / "new").rename(old)
    old.rename(old.with_name("elsewhere"))
    recover(old)
    assert names(old.parent) == ["elsewhere", "out"]


@pytest.mark.parametrize("name", [".out.partial-notes", ".out.partial-0123456789abcdef.txt", "out.partial", ".out"])
def test_what_only_looks_alike_stays(old: Path, name: str) -> None:
    (old.parent / name).mkdir()
    recover(old)
    assert names(old.parent) == sorted([name, "out"])
