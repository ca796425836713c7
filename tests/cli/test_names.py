"""Folders whose names are not UTF-8: one line, before anything is read or written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from txport.cli import cli
from txport.cli.guard import run_guarded


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "g2p-en", "{}/out"],
        ["export", "{}", "out"],
        ["import", "{}", "out"],
        ["run", "{}", "hello"],
        ["verify", "{}"],
        ["parity", "{}"],
    ],
)
def test_the_name_is_told(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        run_guarded(cli, [each.format(folder) for each in arguments])
    out, err = capfd.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert "its name is not UTF-8" in err
    assert [*folder.iterdir()] == [folder / "config.json"]
    assert [*tmp_path.iterdir()] == [folder]
