"""Text in, line by line and never half-read in silence; text out, whole or not at all."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txport.cli import textio
from txport.errors import OutputError, TextError

NOT_ENDS = st.characters(codec="utf-8", exclude_characters="\r\n\0")
LINE = st.text(NOT_ENDS, min_size=1).filter(str.strip)


def read(data: bytes) -> list[str]:
    return list(textio.read_lines(io.BytesIO(data), "it"))


ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # what ends a line for str.splitlines


@given(fields=st.lists(st.text(st.characters() | st.sampled_from(ENDS + "\t\x1b")), min_size=1))
def test_a_row_is_one_line_of_its_fields(fields: list[str]) -> None:
    stream = io.StringIO()
    textio.print_row(fields, stream)
    (line,) = stream.getvalue().splitlines()
    tabs = fields[0].count("\t") if len(fields) == 1 else len(fields) - 1
    assert line.count("\t") == tabs
    if not set(ENDS + "\t" * (len(fields) > 1)) & set("".join(fields)):
        assert line == "\t".join(fields)  # other characters are data
    stream = io.StringIO()
    textio.print_row(fields, stream, raw=True)
    assert stream.getvalue() == "\t".join(fields) + "\n"


@settings(deadline=None)
@given(lines=st.lists(LINE, min_size=1), end=st.sampled_from(["\n", "\r\n"]), is_ended=st.booleans())
def test_lines_come_without_their_ends_whatever_these_are(lines: list[str], end: str, is_ended: bool) -> None:
    data = end.join(lines) + (end if is_ended else "")
    assert read(data.encode()) == lines


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty; give at least one line of text"),
        (b"\n", "it, line 1: the text is empty"),
        (b"one\n \t\r\nthree\n", "it, line 2: the text is empty"),
        (b"one\n\n", "it, line 2: the text is empty"),
        (b"one\ntwo\n\xff\xfe\n", "it, line 3: not UTF-8 text (invalid start byte at byte 0)"),
        (b"one\ncaf\xe9", "it, line 2: not UTF-8 text (unexpected end of data at byte 3)"),
        (b"\xed\xa0\x80\n", "it, line 1: not UTF-8 text (invalid continuation byte at byte 0)"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "it, line 1: binary data, expected UTF-8 text"),
        ("ab\n".encode("utf-16-le"), "it, line 1: binary data, expected UTF-8 text"),
    ],
)
def test_what_is_no_text_is_named_by_its_line(data: bytes, message: str) -> None:
    with pytest.raises(TextError) as caught:
        read(data)
    assert str(caught.value) == message


def test_lines_before_a_bad_one_are_read_first() -> None:
    lines = textio.read_lines(io.BytesIO(b"one\ntwo\n\xff\n"), "it")
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(TextError, match="line 3"):
        next(lines)


def test_lines_are_read_as_they_come() -> None:
    """A program that writes a line and waits for its answer gets it."""
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as sink:  # noqa: PTH123
        lines = textio.read_lines(stream, "a pipe")
        sink.write(b"one\n")
        assert next(lines) == "one"


@pytest.mark.parametrize("arguments", [["one"], ["one", "two", "one"]])
def test_arguments_are_texts_as_they_are(arguments: list[str]) -> None:
    texts, total = textio.open_texts(arguments, [])
    assert (list(texts), total) == (arguments, len(arguments))


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    one = tmp_path / "one"
    two = tmp_path / "two"
    one.write_bytes(b"a\r\nb")
    two.write_bytes("é\n".encode())
    texts, total = textio.open_texts([], [two, one, two])
    assert (list(texts), total) == (["é", "a", "b", "é"], 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "can't be read: No such file"), (".", "can't be read: Is a directory"), ("empty", "empty is empty")],
)
def test_files_that_hold_no_text_are_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(TextError, match=message) as caught:
        textio.open_texts([], [tmp_path / name])
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("stdin", [io.TextIOWrapper(io.BytesIO()), None], ids=["empty", "closed"])
def test_standard_input_without_a_line(monkeypatch: pytest.MonkeyPatch, stdin: io.TextIOWrapper | None) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    texts, total = textio.open_texts([], [])
    assert total is None
    with pytest.raises(TextError, match="standard input is empty"):
        list(texts)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(path: Path | None, text: str, error: BaseException | None = None) -> None:
    with textio.open_output(path) as stream:
        stream.write(text)
        if error:
            raise error


def test_no_file_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write(None, "é\n")
    assert capsys.readouterr().out == "é\n"
    assert not sys.stdout.closed


@pytest.mark.parametrize("before", [None, "old"])
def test_a_file_appears_when_it_is_whole(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "out"
    if before is not None:
        path.write_text(before)
    with textio.open_output(path) as stream:
        stream.write("é\n")
        stream.flush()
        assert (path.read_text() if path.exists() else None) == before
    assert path.read_bytes() == "é\n".encode()
    assert names(tmp_path) == ["out"]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("error", [TextError("stop"), KeyboardInterrupt("stop"), OutputError("stop")], ids=repr)
def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path: Path, before: str | None, error: BaseException) -> None:
    path = tmp_path / "out"
    if before is not None:
        path.write_text(before)
    with pytest.raises(type(error), match="stop"):
        write(path, "half", error)
    assert names(tmp_path) == ([] if before is None else ["out"])
    assert before is None or path.read_text() == before


def test_a_named_pipe_is_written_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    read_back = list[str]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read_back.append(path.read_text()))
    reader.start()
    write(path, "through")
    reader.join(timeout=10)
    assert read_back == ["through"]
    assert stat.S_ISFIFO(path.stat().st_mode)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_of(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, count: int, total: int | None) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    items = list(range(count))
    assert list(textio.with_progress(iter(items), total)) == items
    return stderr.getvalue()


@pytest.mark.parametrize(("count", "total"), [(1, 1), (textio.LONG, textio.LONG), (3, None)])
def test_no_progress_when_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, total: int | None
) -> None:
    assert progress_of(monkeypatch, io.StringIO(), count, total) == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("count", "total", "is_shown"),
    [(textio.LONG - 1, textio.LONG - 1, False), (textio.LONG, textio.LONG, True), (3, None, True)],
)
def test_progress_on_a_terminal_is_for_many_texts_or_nobody_knows_how_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, total: int | None, is_shown: bool
) -> None:
    assert ("generating" in progress_of(monkeypatch, Terminal(), count, total)) == is_shown
    assert capsys.readouterr().out == ""


def test_progress_is_no_reason_to_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())

    def items() -> Iterator[int]:
        yield 1
        pytest.fail("read ahead")

    progress = textio.with_progress(items(), None)
    assert next(progress) == 1
    progress.close()  # type: ignore[attr-defined]


def test_no_progress_is_drawn_over_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert progress_of(monkeypatch, Terminal(), 3, None) == ""
    assert "generating" in progress_of(monkeypatch, Terminal(), textio.LONG, textio.LONG)


def test_a_byte_order_mark_is_no_text() -> None:
    assert list(textio.read_lines(io.BytesIO(b"\xef\xbb\xbfbad\nchief\n"), "input")) == ["bad", "chief"]
