"""Checkpoints of Hugging Face's hub: what is asked of it, and what is said where it gives nothing. No test asks it."""

from __future__ import annotations

import fnmatch
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import FAMILIES
from txport.api import release
from txport.checkpoints import folder, hub
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import CheckpointError, UnavailableError

ID = "someone/gpt2.small"


@pytest.fixture(autouse=True)
def nothing_downloaded() -> Iterator[None]:
    hub.download.cache_clear()
    yield
    hub.download.cache_clear()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that has one repository; -> what it was asked for."""
    calls = []
    kept = FAMILIES / "gpt2"

    def snapshot_download(**how: Any) -> str:
        calls.append(how)
        if how["repo_id"] != ID:
            raise FileNotFoundError(f"404 for {how['repo_id']}\nwith another line")
        out = tmp_path / "cache"
        out.mkdir()
        for file in [*kept.iterdir(), kept / "pytorch_model.bin", kept / "expected.npz"]:
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in how["allow_patterns"]):
                shutil.copy(file, out)
        return str(out)

    given_hub(monkeypatch, snapshot_download)
    monkeypatch.chdir(tmp_path)
    return calls


def given_hub(monkeypatch: pytest.MonkeyPatch, snapshot_download: Callable[..., str]) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))


def test_a_name_of_the_hub_is_exported_as_its_folder_is(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    bundle = release.export(ID, tmp_path / "bundle")
    assert bundle.manifest.checkpoint == {"name": ID, "sha256": folder.digest(str(tmp_path / "cache"))}
    (how,) = asked  # once
    assert (how["repo_id"], how["revision"]) == (ID, None)


def test_pickles_are_never_asked_for(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    load_checkpoint(ID)
    patterns = asked[0]["allow_patterns"]
    for name in ("pytorch_model.bin", "model.bin", "x_step_9.pt", "x.pkl", "x.msgpack", "x.py", "x.h5", "x.npz"):
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]


def test_a_revision_is_asked_for(asked: list[dict[str, Any]]) -> None:
    assert folder.label(f"{ID}@v1.0") == f"{ID}@v1.0"
    load_checkpoint(f"{ID}@refs/pr/3")
    assert asked[0]["revision"] == "refs/pr/3"


def test_what_the_hub_does_not_have_is_one_line(asked: list[dict[str, Any]]) -> None:
    what = r"there is no folder no/such, and the hub gives none: 404 for no/such.*; download .* give the path"
    with pytest.raises(CheckpointError, match=what) as caught:
        load_checkpoint("no/such")
    assert "\n" not in str(caught.value)


def test_without_the_package_it_is_named(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnavailableError, match=rf"the checkpoint {ID} of the hub needs huggingface_hub, which is not"):
        load_checkpoint(ID)


def test_what_is_here_is_not_asked_for(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    shutil.copytree(FAMILIES / "gpt2", tmp_path / "someone" / "gpt2.small")
    assert load_checkpoint(ID).name == "gpt2.small"
    for name in ("someone/else", "./gpt2", "a/b/c", "../x", "/x/y", "x", "preset:tiny/x", "a/b@", "a /b", "-a/b"):
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            folder.find_folder(name)
    assert asked == []


@given(st.text(max_size=20))
def test_no_path_that_climbs_is_a_name_of_the_hub(text: str) -> None:
    if hub.NAME.fullmatch(text):
        owner, _, rest = text.partition("/")
        assert not {owner, rest.partition("@")[0]} & {"", ".", ".."}
        assert text.isascii()
