"""The audio settings of a folder, wherever transformers wrote them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import WHISPER
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WHISPER, tmp_path / "whisper"))


def of_processor(folder: Path, **values: Any) -> None:
    """Move the settings to where transformers 5 writes them, with other values of some."""
    path = folder / "preprocessor_config.json"
    settings = {**json.loads(path.read_text()), **values}
    path.unlink()
    whole = {"feature_extractor": settings, "processor_class": "WhisperProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(whole))


def test_a_folder_of_transformers_5_hears_as_an_older_one(folder: Path) -> None:
    old = load_checkpoint(str(folder))
    of_processor(folder)
    assert load_checkpoint(str(folder)).facts == old.facts


def test_the_newer_file_takes_precedence_and_belongs_to_the_checkpoint(folder: Path) -> None:
    old = load_checkpoint(str(folder))
    of_processor(folder, n_fft=512)
    shutil.copyfile(WHISPER / "preprocessor_config.json", folder / "preprocessor_config.json")
    found = load_checkpoint(str(folder))
    assert found.facts.source.n_fft == 512
    assert found.sha256 != old.sha256


def test_settings_that_change_features_are_refused_there_too(folder: Path) -> None:
    of_processor(folder, dither=0.5)
    with pytest.raises(ConfigError, match=r"preprocessor_config's dither 0\.5 is not supported"):
        load_checkpoint(str(folder))


def test_a_setting_of_the_processor_that_is_unknown_is_refused_by_name(folder: Path) -> None:
    of_processor(folder)
    path = folder / "processor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "voice": 1}))
    with pytest.raises(ConfigError, match="the key 'voice', here 1, is not supported"):
        load_checkpoint(str(folder))
