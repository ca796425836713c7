"""Files of strangers are read within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txport.system.documents import DocumentError, read_json, read_lines, read_text


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    for name, message in (("pipe", "is not a file"), (".", "is not a file"), ("nowhere", "is missing")):
        with pytest.raises(DocumentError, match=message):
            read_text(tmp_path / name)
    with pytest.raises(DocumentError, match="is not a file"):
        read_text(Path("/dev/zero"))


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # a hole: no disk holds it
    with pytest.raises(DocumentError, match="has 1099511627776 bytes, expected at most"):
        read_json(file)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"a": [1, 2.5, "x", null, true]}')
    (tmp_path / "link.json").symlink_to("file.json")
    assert read_json(tmp_path / "link.json") == {"a": [1, 2.5, "x", None, True]}


def test_a_loop_of_links_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(DocumentError):
        read_text(tmp_path / "one")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\vb\fc\x1cd\x85e\u2028f\u2029g\nh", ["a\vb\fc\x1cd\x85e\u2028f\u2029g", "h"]),
    ],
)
def test_only_a_line_feed_ends_a_line(text: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(text.encode())
    assert read_lines(tmp_path / "lines.txt") == lines
