"""The checkpoint of a bundle is found where it was, or beside the bundle, if it is still the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import txport
from txport.api.locate import checkpoint_of
from txport.bundles.bundle import Bundle
from txport.cli import cli
from txport.errors import TextError, UnsupportedError


@pytest.fixture
def own(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Bundle]:
    """A checkpoint of the user's, and its bundle in another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(checkpoint, tmp_path / "models" / "toy"))
    return folder, txport.export(folder, tmp_path / "bundles" / "bundle")


def test_it_is_found_where_it_was(own: tuple[Path, Bundle]) -> None:
    folder, bundle = own
    assert checkpoint_of(bundle) == str(folder.resolve())
    named = (path for path in bundle.path.rglob("*") if path.is_file() and str(folder).encode() in path.read_bytes())
    assert not [*named]
    assert txport.load(bundle.path, runtime="torch").generate("bad")


def test_it_is_found_beside_the_bundle(own: tuple[Path, Bundle]) -> None:
    folder, bundle = own
    moved = folder.rename(bundle.path.parent / "toy")
    assert checkpoint_of(bundle) == str(moved)


@pytest.mark.parametrize("command", ["parity", "bench"])
def test_what_changed_is_not_it_and_the_line_to_type_is_told(command: str, own: tuple[Path, Bundle]) -> None:
    folder, bundle = own
    (folder / "samples.txt").write_text("bad\n")
    found = CliRunner().invoke(cli, [command, str(bundle.path)])
    assert isinstance(found.exception, UnsupportedError)
    assert f"; `txport {command} {bundle.path} --checkpoint FOLDER` names it" in str(found.exception)
    with pytest.raises(UnsupportedError, match=r"has changed; name it with checkpoint=FOLDER"):
        txport.load(bundle.path, runtime="torch")


def test_without_a_cache_a_bundle_is_exported(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    bundle = txport.export(checkpoint, tmp_path / "out")
    with pytest.raises(UnsupportedError, match="made from a checkpoint of yours"):
        checkpoint_of(bundle)


def test_a_report_is_written_also_without_the_baseline(own: tuple[Path, Bundle], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    how = ["--runtime", "ort", "--report", str(report)]
    found = CliRunner().invoke(cli, ["parity", str(own[1].path), *how, "--baseline", str(tmp_path / "none.json")])
    assert isinstance(found.exception, TextError)
    assert str(found.exception).endswith(f"is missing, so nothing was compared with a baseline; {report} can become it")
    again = ["parity", str(own[1].path), "--runtime", "ort", "--baseline", str(report)]
    assert CliRunner().invoke(cli, again).exit_code == 0


def test_a_benchmark_is_written_also_without_an_older_report(own: tuple[Path, Bundle], tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    how = ["--runtime", "ort", "--quick", "--rounds", "3", "--tokens", "3", "--report", str(report)]
    found = CliRunner().invoke(cli, ["bench", str(own[1].path), *how, "--compare", str(tmp_path / "none.json")])
    assert isinstance(found.exception, TextError)
    assert str(found.exception).endswith(f"nothing was compared with an older report; {report} can become it")
    assert report.is_file()
