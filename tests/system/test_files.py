"""Folders that appear whole or not at all, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from tests.system.folders import contents, names, write, write_file, write_half
from txport.errors import OutputError
from txport.system.files import staged_folder


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "parent" / "made" / "out"
    with staged_folder(out) as folder:
        (folder / "file").write_text("new")
        assert not out.exists()
    assert contents(tmp_path) == {"parent/made/out/file": "new"}


def test_force_replaces_all_that_was_there(old: Path) -> None:
    write(old, force=True)
    assert contents(old.parent) == {"out/onnx/graph": "new", "out/manifest": "new"}
    assert names(old.parent) == ["out"]


def test_force_replaces_only_a_folder_of_its_kind(old: Path) -> None:
    with (
        pytest.raises(OutputError, match="out has no manifest, so force=True does not replace it"),
        staged_folder(old, force=True, holding="manifest"),
    ):
        pytest.fail("the block ran")
    assert contents(old.parent) == {"out/precious": "old"}
    with staged_folder(old, force=True, holding="precious") as folder:
        (folder / "manifest").write_text("new")
    assert contents(old.parent) == {"out/manifest": "new"}


def test_what_exists_is_refused_before_any_work(old: Path) -> None:
    with pytest.raises(OutputError, match="out exists; force=True replaces it"), staged_folder(old):
        pytest.fail("the block ran")
    assert contents(old.parent) == {"out/precious": "old"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OutputError])
def test_a_block_that_fails_leaves_nothing_and_its_error_passes(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error, match="stop"):
        write_half(tmp_path / "out", error("stop"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_keeps_what_it_was_to_replace(old: Path, error: type[BaseException]) -> None:
    with pytest.raises(error, match="stop"):
        write_half(old, error("stop"))
    assert contents(old.parent) == {"out/precious": "old"}
    assert names(old.parent) == ["out"]


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    with pytest.raises(OutputError, match="out is a file, expected a folder to make"):
        write(out, force=True)
    assert contents(tmp_path) == {"out": "precious"}


@pytest.mark.parametrize("target", ["out", "nowhere"])
def test_a_link_stays_and_leads_to_the_new_folder(old: Path, target: str) -> None:
    link = old.parent / "link"
    link.symlink_to(target)
    with pytest.raises(OutputError, match="link exists; force=True") if target == "out" else contextlib.nullcontext():
        write(link)
    write(link, force=True)
    assert link.readlink() == Path(target)
    assert contents(old.parent / target) == {"onnx/graph": "new", "manifest": "new"}
    assert names(old.parent) == sorted({"link", "out", target})


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    for refused in (write, write_file):
        with pytest.raises(OutputError, match="one can't be written: Too many levels of symbolic links"):
            refused(tmp_path / "one")


@pytest.mark.parametrize("out", [".", "..", "../out"])
def test_the_working_folder_is_not_replaced(old: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    """A shell that stands in it would find itself in a folder that is gone."""
    monkeypatch.chdir(old)
    with pytest.raises(OutputError, match="is the working folder, or holds it; choose another place"):
        write(Path(out), force=True)
    monkeypatch.undo()
    assert contents(old.parent) == {"out/precious": "old"}


@pytest.mark.parametrize("refused", ["folder", "file"])
def test_a_mount_point_is_refused_before_any_work(old: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path in (old, old / "precious"))
    with pytest.raises(OutputError, match="is a mount point, which can't be replaced"):
        write(old, force=True) if refused == "folder" else write_file(old / "precious")
    assert contents(old.parent) == {"out/precious": "old"}


def test_a_folder_that_is_replaced_keeps_its_mode(old: Path) -> None:
    old.chmod(0o700)
    write(old, force=True)
    assert stat.S_IMODE(old.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["file/out", "file/deep/out", "x" * 300, "x" * 250])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    """A parent that is a file, and names longer than file systems allow, alone or with our suffix."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError, match="can't be written"), staged_folder(tmp_path / name):
        pytest.fail("the block ran")
    assert contents(tmp_path) == {"file": "precious"}
    assert names(tmp_path) == ["file"]


def test_new_files_have_the_modes_that_the_user_asks_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with staged_folder(out) as folder:
        (folder / "file").touch(mode=0o600)
        assert folder.parent.stat().st_mode & 0o077 == 0
    usual = tmp_path / "usual"
    usual.mkdir()
    (usual / "file").touch()
    assert out.stat().st_mode == usual.stat().st_mode
    assert (out / "file").stat().st_mode == (usual / "file").stat().st_mode
