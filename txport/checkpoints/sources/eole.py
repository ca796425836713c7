"""Eole's folders, which are recognised only to raise an error with advice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from txport.checkpoints.sources.source import Format, Source
from txport.errors import ConfigError
from txport.models.config import read_config
from txport.models.names import CONFIG

KEYS = ("architecture", "encoder", "decoder")  # the options of a model have at least one of them
FIX = "convert it with CTranslate2 (ctranslate2.converters.eole_ct2) and name the folder that this writes"


def recognises(folder: Path) -> bool:
    """Return whether `config.json` has the options of a model under `model`, as Eole writes them."""
    values = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    model = values.get("model")
    return isinstance(model, Mapping) and any(key in model for key in KEYS)


def read(folder: Path) -> Source:
    """Raise `ConfigError` always."""
    raise ConfigError(f"{folder / CONFIG} is of Eole, whose models can't be read; {FIX}")


FORMAT = Format(recognises=recognises, read=read)
