"""Folders that appear whole or not at all, whatever happens in between."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from txport.errors import OutputError
from txport.system.files import hash_of, sha256, staged_folder


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too, by path."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(out: Path, text: str = "new", *, force: bool = False) -> None:
    with staged_folder(out, force=force) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "graph").write_text(text)
        (folder / "manifest").write_text(text)


def write_half(out: Path, error: BaseException) -> None:
    with staged_folder(out, force=True) as folder:
        (folder / "half").write_text("half")
        raise error


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder that stands where one is to be written."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "precious").write_text("old")
    return folder


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "parent" / "made" / "out"
    with staged_folder(out) as folder:
        (folder / "file").write_text("new")
        assert not out.exists()
    assert contents(tmp_path) == {"parent/made/out/file": "new"}


def test_an_empty_folder_needs_no_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(out)
    assert contents(tmp_path) == {"out/onnx/graph": "new", "out/manifest": "new"}
    assert names(tmp_path) == ["out"]


def test_force_replaces_all_that_was_there(old: Path) -> None:
    write(old, force=True)
    assert contents(old.parent) == {"out/onnx/graph": "new", "out/manifest": "new"}
    assert names(old.parent) == ["out"]


def test_force_replaces_only_a_folder_of_its_kind(old: Path) -> None:
    with (
        pytest.raises(OutputError, match="out has no manifest, so --force does not replace it"),
        staged_folder(old, force=True, holding="manifest"),
    ):
        pytest.fail("the block ran")
    assert contents(old.parent) == {"out/precious": "old"}
    with staged_folder(old, force=True, holding="precious") as folder:
        (folder / "manifest").write_text("new")
    assert contents(old.parent) == {"out/manifest": "new"}


def test_what_appears_meanwhile_stays_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def slower() -> None:
        with staged_folder(out) as folder:
            (folder / "file").write_text("slower")
            out.mkdir()
            (out / "file").write_text("quicker")

    with pytest.raises(OutputError, match="can't be written"):
        slower()
    assert contents(tmp_path) == {"out/file": "quicker"}
    assert names(tmp_path) == ["out"]


def test_what_exists_is_refused_before_any_work(old: Path) -> None:
    with pytest.raises(OutputError, match="out exists; --force replaces it"), staged_folder(old):
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


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")], ids=["Ctrl-C", "error"])
def test_a_folder_that_is_replaced_is_always_there_whole(
    old: Path, monkeypatch: pytest.MonkeyPatch, call: int, before: bool, error: BaseException
) -> None:
    """The old one is moved aside, then the new one in; Ctrl-C and errors may come before and after each move."""
    rename, calls = Path.rename, [0]

    def failing(source: Path, target: Path) -> Path:
        calls[0] += 1
        if before and calls[0] == call:
            raise error
        moved = rename(source, target)
        if not before and calls[0] == call:
            raise error
        return moved

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OutputError):
        write(old, force=True)
    new = {"out/onnx/graph": "new", "out/manifest": "new"}
    assert contents(old.parent) == (new if (call, before) == (2, False) else {"out/precious": "old"})
    assert names(old.parent) == ["out"]


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    with pytest.raises(OutputError, match="out is a file, expected a folder to make"):
        write(out, force=True)
    assert contents(tmp_path) == {"out": "precious"}


def test_a_link_to_nowhere_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="is a file"):
        write(out, force=True)
    assert out.is_symlink()


def test_a_link_to_a_folder_is_replaced_and_the_folder_left_alone(old: Path) -> None:
    link = old.parent / "link"
    link.symlink_to(old)
    write(link, force=True)
    assert not link.is_symlink()
    assert (old / "precious").read_text() == "old"
    assert contents(link) == {"onnx/graph": "new", "manifest": "new"}


def test_the_working_folder_can_be_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    write(Path())
    monkeypatch.undo()
    assert contents(tmp_path) == {"out/onnx/graph": "new", "out/manifest": "new"}
    assert names(tmp_path) == ["out"]


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
        assert folder.stat().st_mode & 0o077 == 0
    usual = tmp_path / "usual"
    usual.mkdir()
    (usual / "file").touch()
    assert out.stat().st_mode == usual.stat().st_mode
    assert (out / "file").stat().st_mode == (usual / "file").stat().st_mode


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_process_that_is_killed_leaves_no_half(old: Path, force: bool) -> None:
    out = old if force else old.parent / "fresh"
    code = """
        import sys, time
        from pathlib import Path
        from txport.system.files import staged_folder
        with staged_folder(Path(sys.argv[1]), force=True) as folder:
            (folder / "manifest").write_text("half")
            print("ready", flush=True)
            time.sleep(60)
    """
    with python(code, str(out)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert (old / "precious").read_text() == "old"
    assert names(old) == ["precious"]
    assert out.exists() == force
    write(out, force=True)  # what the dead one left is in nobody's way
    assert contents(out) == {"onnx/graph": "new", "manifest": "new"}


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    from txport.system.files import staged_folder
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        with staged_folder(Path(sys.argv[1]), force=True) as folder:
            (folder / "small").write_text("fits")
            (folder / "large").write_bytes(bytes(100_000))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_disk_that_fills_up_is_our_error_in_one_line_and_leaves_nothing(old: Path) -> None:
    with python(FULL_DISK, str(old)) as process:
        stdout, stderr = process.communicate()
    assert stdout == f"OutputError {old} can't be written: File too large; nothing was left there\n"
    assert stderr == ""
    assert contents(old.parent) == {"out/precious": "old"}
    assert names(old.parent) == ["out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_device_without_space_is_our_error(tmp_path: Path) -> None:
    def fill() -> None:
        with staged_folder(tmp_path / "out") as folder:
            (folder / "file").symlink_to("/dev/full")
            (folder / "file").write_text("more than nothing")

    with pytest.raises(OutputError, match="No space left on device"):
        fill()
    assert names(tmp_path) == []


def test_hashes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 300_000)
    assert sha256(file) == hashlib.sha256(b"x" * 300_000).hexdigest()
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert hash_of(one) == hash_of(other)
    assert len({hash_of(one), hash_of({"a": "2", "b": "1"}), hash_of({"a": "1"}), hash_of({})}) == 4
