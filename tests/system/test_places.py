"""Single files, and files of a folder, whole or not at all; links, devices and open files as places."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.system.folders import contents, names, write_file
from txport.errors import OutputError
from txport.system.files import require_file, staged_file, staged_files


def test_a_link_stays_and_leads_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/other")
    (tmp_path / "folder" / "other").symlink_to("file")
    for _ in range(2):  # to nowhere, then to a file
        write_file(tmp_path / "link")
        assert (tmp_path / "folder" / "other").is_symlink()
        assert contents(tmp_path)["folder/file"] == "new"
    assert names(tmp_path) == ["folder", "link"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    with staged_file(path) as stream:
        assert [stat.S_IMODE(each.stat().st_mode) & 0o077 for each in tmp_path.glob(".file.*")] == [0]
        stream.write("new")
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text()) == (mode, "new")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.chown(path, 1234, 5678)
    write_file(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="file can't be written: no permission; choose another place"):
        write_file(path)


@pytest.mark.parametrize("name", ["file", "missing/file", "folder"])
def test_a_look_at_a_place_leaves_it_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError) if name != "file" else contextlib.nullcontext():
        require_file(tmp_path / name)
    assert contents(tmp_path) == {"file": "precious"}
    assert names(tmp_path) == ["file", "folder"]


STREAM = """
    import sys
    from pathlib import Path
    from txport.system.files import require_file, staged_file
    print("before")
    require_file(Path(sys.argv[1]))
    with staged_file(Path(sys.argv[1])) as stream:
        stream.write("new\\n")
    print("after", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux names open files")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1", "link"])
@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_an_open_file_is_written_where_it_stands(tmp_path: Path, name: str, kind: str) -> None:
    """What was written to it before stays, and who holds it open goes on after what is written."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    command = [sys.executable, "-c", textwrap.dedent(STREAM), str(tmp_path / name)]
    if kind == "pipe":
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    elif kind == "file":
        with (tmp_path / "out").open("w") as stream:
            subprocess.run(["sh", "-c", 'echo first; "$@"; echo last', "sh", *command], stdout=stream, check=True)
        out = (tmp_path / "out").read_text().removeprefix("first\n").removesuffix("last\n")
    else:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            subprocess.run(command, stdout=theirs, check=True)
            out = ours.recv(1000).decode()
    assert out == "before\nnew\nafter\n"
    assert set(names(tmp_path)) <= {"link", "out"}


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    write_file(Path(os.devnull))
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116


def test_a_look_at_a_pipe_waits_for_no_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    require_file(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its name must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(OutputError, match="socket is a socket or a block device, expected a file to write"):
            write_file(tmp_path / "socket")
        assert names(tmp_path) == ["socket"]


# ------------------------------------------------------------------------------------------------ files of a folder

NAMES = ("config", "weights", "tokenizer")


def write_files(folder: Path, *given: str, error: BaseException | None = None) -> None:
    with staged_files(folder, NAMES) as stage:
        for name in given:
            (stage / name).write_text("new")
        if error:
            raise error


def test_files_of_a_folder_are_replaced_together_and_the_rest_stays(old: Path) -> None:
    write_files(old, "config", "tokenizer")
    (old / "config").chmod(0o600)
    write_files(old, "config", "weights")
    assert contents(old) == {"config": "new", "weights": "new", "precious": "old"}, "an older tokenizer is removed"
    assert stat.S_IMODE((old / "config").stat().st_mode) == 0o600
    assert names(old.parent) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_files_of_a_folder_stay_if_the_block_fails(old: Path, error: type[BaseException]) -> None:
    write_files(old, "config", "tokenizer")
    with pytest.raises(error):
        write_files(old, "weights", error=error("stop"))
    assert contents(old) == {"config": "new", "tokenizer": "new", "precious": "old"}


def test_files_of_a_folder_make_it_if_there_is_none(tmp_path: Path) -> None:
    write_files(tmp_path / "made" / "out", "config")
    assert contents(tmp_path) == {"made/out/config": "new"}


def test_a_folder_in_the_way_of_a_file_is_refused_before_any_work(old: Path) -> None:
    (old / "weights").mkdir()
    with pytest.raises(OutputError, match="out has a folder weights, expected a file to replace"):
        write_files(old, error=AssertionError("the block ran"))


def test_of_two_that_write_the_same_files_each_writes_all_of_them(old: Path) -> None:
    with staged_files(old, NAMES) as first:
        (first / "config").write_text("first")
        write_files(old, "config", "weights")
        assert {name for name in names(old) if not name.startswith(".")} == {"config", "weights", "precious"}
    assert contents(old) == {"config": "first", "precious": "old"}
